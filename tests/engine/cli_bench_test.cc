// `sluice bench` from outside: what it prints, not how fast the machine is.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::lines_of;
using testing::operator+;
using testing::run_cli;

/// A run of seconds.
CliResult run_small(const Arguments& more) {
  CliResult result = run_cli(Arguments{"bench", "--model", "tiny", "--repeat", "2"} + more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result;
}

void expect_positive_number(const json& object, const char* key) {
  ASSERT_TRUE(object.contains(key)) << key;
  ASSERT_TRUE(object[key].is_number()) << key << ": " << object[key];
  EXPECT_GT(object[key].get<double>(), 0) << key;
}

void expect_figures(const json& object) {
  for (const char* key : {"tokens_per_s", "tokens_per_s_median", "limit_share", "weight_bytes",
                          "threads", "read_bandwidth_bytes_per_s", "gemm_flop_per_s"}) {
    expect_positive_number(object, key);
  }
  for (const char* key : {"tokens_per_s_stddev", "limit_share_stddev"}) {
    ASSERT_TRUE(object.contains(key)) << key;
    EXPECT_GE(object[key].get<double>(), 0) << key;
  }
  for (const char* key : {"tokens_per_s_all", "limit_share_all"}) {
    ASSERT_TRUE(object.contains(key)) << key;
    EXPECT_EQ(object[key].size(), 2U) << key;
  }
  EXPECT_EQ(object["repetitions"], 2);
  EXPECT_TRUE(object["overhead_us_per_iteration"].is_number());
  EXPECT_TRUE(object["limit"] == "bandwidth" || object["limit"] == "compute") << object["limit"];
  ASSERT_TRUE(object.contains("gemm_bf16_flop_per_s"));
  expect_positive_number(object, "gemm_bf16_flop_per_s");
}

TEST(CliBenchTest, JsonHasEveryTestAndField) {
  const CliResult result = run_small({"--prompt-tokens", "16", "--gen-tokens", "8", "--batch",
                                      "1,2", "--depth", "0,32", "--json"});
  const json objects = json::parse(result.out);
  ASSERT_TRUE(objects.is_array());
  std::vector<std::string> tests;
  for (const json& object : objects) {
    tests.push_back(object["test"].get<std::string>() + " " + object["batch"].dump() + " " +
                    object["depth"].dump());
    EXPECT_EQ(object["model"], "tiny");
    EXPECT_EQ(object["policy"], "cpu-only");
    EXPECT_TRUE(object["backend"].get<std::string>().starts_with("CPU (")) << object["backend"];
    expect_figures(object);
  }
  const std::vector<std::string> expected = {"pp16 1 0", "pp16 2 0", "pp16 1 32", "pp16 2 32",
                                             "tg8 1 0",  "tg8 2 0",  "tg8 1 32",  "tg8 2 32"};
  EXPECT_EQ(tests, expected);
}

TEST(CliBenchTest, TableHasALineATestAndWhatWasProbed) {
  const std::vector<std::string> lines =
      lines_of(run_small({"--prompt-tokens", "16", "--gen-tokens", "8"}).out);
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_NE(lines[0].find("share of limit"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("pp16"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("tg8"), std::string::npos) << lines[2];
  EXPECT_EQ(lines[3], "");
  EXPECT_NE(lines[4].find("memory reads at"), std::string::npos) << lines[4];
  EXPECT_NE(lines[5].find("loaded and packed in"), std::string::npos) << lines[5];
}

TEST(CliBenchTest, MarkdownIsATable) {
  const std::vector<std::string> lines =
      lines_of(run_small({"--prompt-tokens", "16,24", "--gen-tokens", "0", "--markdown"}).out);
  ASSERT_EQ(lines.size(), 7U);
  for (int i = 0; i < 4; ++i) {
    const std::string& line = lines[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 14) << line;
  }
}

TEST(CliBenchTest, CsvHasAsManyCellsInEveryLine) {
  const std::vector<std::string> lines =
      lines_of(run_small({"--prompt-tokens", "0", "--gen-tokens", "8", "--output-format", "csv",
                          "--dtype", "f32", "--no-warmup"})
                   .out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','),
            std::count(lines[1].begin(), lines[1].end(), ','));
  EXPECT_TRUE(lines[0].starts_with("model,weight_bytes,weights,head_weights,weight_bits,dtype,"))
      << lines[0];
  EXPECT_NE(lines[1].find("f32"), std::string::npos) << lines[1];
}

/// A bad command line: its options, the exit code, and what the line must say.
struct BadBench {
  const char* name;
  Arguments options;
  int exit_code;
  std::vector<std::string> parts;
};

std::ostream& operator<<(std::ostream& out, const BadBench& bad) { return out << bad.name; }

class CliBenchErrorTest : public ::testing::TestWithParam<BadBench> {};

TEST_P(CliBenchErrorTest, IsOneLine) {
  const Arguments arguments = Arguments{"bench"} + GetParam().options;
  expect_failure(run_cli(arguments), GetParam().exit_code, GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(
    Options, CliBenchErrorTest,
    ::testing::Values(
        BadBench{"NoBatch", {"--batch", "0"}, 2, {"--batch 0", "from 1 to 65536"}},
        BadBench{"HoleInAList", {"--batch", "1,,2"}, 2, {"--batch 1,,2", "1,8,64"}},
        BadBench{"NegativeDepth", {"--depth=-1"}, 2, {"--depth -1"}},
        BadBench{"NoNumber", {"--gen-tokens", "many"}, 2, {"--gen-tokens many"}},
        BadBench{"NothingToMeasure",
                 {"--prompt-tokens", "0", "--gen-tokens", "0"},
                 2,
                 {"nothing to measure"}},
        BadBench{"NoRepetition", {"--repeat", "0"}, 2, {"--repeat 0"}},
        BadBench{"TwoFormats", {"--json", "--csv"}, 2, {"--json", "enough"}},
        BadBench{"PlotWithoutASweep", {"--plot", "a.svg"}, 2, {"--plot", "--sweep"}},
        BadBench{"PlotOfAnUnknownKind", {"--sweep", "--plot", "a.gif"}, 2, {"a.gif", ".svg"}},
        BadBench{"PlotWhereNothingCanBeWritten",
                 {"--sweep", "--model", "tiny", "--plot", "/proc/a.svg"},
                 1,
                 {"cannot write /proc/a.svg"}},
        BadBench{
            "OperationsWithoutASweep", {"--operations", "gemm"}, 2, {"--operations", "--sweep"}},
        BadBench{"UnknownOperation",
                 {"--sweep", "--operations", "gemm,axpy"},
                 2,
                 {"--operations", "axpy", "experts"}},
        BadBench{"ExpertsOfADenseModel",
                 {"--sweep", "--model", "tiny", "--operations", "experts"},
                 1,
                 {"no experts", "--operations"}},
        BadBench{"SweepWithSizes", {"--sweep", "--batch", "2"}, 2, {"--sweep", "--batch"}},
        BadBench{"UnknownFormat", {"--output-format", "xml"}, 2, {"xml", "table, markdown, csv"}},
        BadBench{"UnknownType", {"--dtype", "int8"}, 2, {"int8", "bf16"}},
        BadBench{"DomainsAreGone", {"--domains", "2"}, 2, {"--domains", "--cpu-plan static"}},
        BadBench{"BeyondTheContext", {"--depth", "500"}, 2, {"pp512", "1012", "context", "512"}},
        BadBench{"UnknownShape", {"--model", "opt-12m"}, 1, {"opt-12m", "known are opt-125m"}},
        BadBench{"NoFolder", {"--model", "/nonexistent"}, 1, {"/nonexistent"}},
        BadBench{"ShapeForPlanningOnly", {"--model", "bloom-176b"}, 1, {"cannot run"}},
        BadBench{"TooLarge", {"--model", "opt-175b"}, 1, {"not enough memory", "KV cache"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice
