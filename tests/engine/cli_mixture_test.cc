// Mixtures of experts from outside: what is counted of them, and what is refused.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

/// 2 layers, each of 6 experts, 2 a token: three weights [40, 56] of 2 bytes an expert.
const std::string model = SLUICE_TEST_DATA_DIR "/golden/models/qwen3-moe";
constexpr double expert_bytes = 3 * 40 * 56 * 2;

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

/// The counts of a layer add up to rows x 2; only the last one's may be fewer.
void expect_counts(const json& routing, std::int64_t rows) {
  EXPECT_EQ(routing["rows"], rows);
  ASSERT_EQ(routing["layers"].size(), 2U);
  std::vector<std::int64_t> sums;
  for (const json& layer : routing["layers"]) {
    EXPECT_EQ(layer.size(), 6U);
    std::int64_t sum = 0;
    for (const json& count : layer) sum += count.get<std::int64_t>();
    sums.push_back(sum);
  }
  EXPECT_EQ(sums[0], 2 * rows);
  EXPECT_LE(sums[1], 2 * rows);
}

TEST(CliMixtureTest, BenchCountsTheExpertsThatRowsGoThrough) {
  const test::TemporaryFolder folder;
  const CliResult result =
      run_cli({"bench", "--model", model, "--prompt-tokens", "0", "--gen-tokens", "8", "--batch",
               "1,3", "--repeat", "2", "--record-routing", folder.file("routing.json"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json tests = json::parse(result.out);
  ASSERT_EQ(tests.size(), 2U);
  for (const json& test : tests) {
    EXPECT_EQ(test["experts"], 6);
    EXPECT_EQ(test["experts_per_token"], 2);
  }
  // A row goes through two in each of two layers.
  EXPECT_EQ(tests[0]["experts_touched"], 2);
  EXPECT_EQ(tests[0]["expert_bytes_per_token"], 2 * 2 * expert_bytes);
  const double touched = tests[1]["experts_touched"];
  EXPECT_GT(touched, 2);  // rows differ
  EXPECT_LE(touched, 6);
  EXPECT_NEAR(tests[1]["expert_bytes_per_token"].get<double>(), 2 * touched * expert_bytes / 3,
              1e-6);
  // 8 tokens of 1 and of 3 sequences, twice.
  const json routing = read_json(folder.file("routing.json"));
  expect_counts(routing, 2 * 8 * (1 + 3));
  EXPECT_EQ(routing["touched_by_rows"][0], json({1, 2.0}));
  EXPECT_EQ(routing["touched_by_rows"][1][0], 3);
  EXPECT_NEAR(routing["touched_by_rows"][1][1].get<double>(), touched, 1e-12);
}

TEST(CliMixtureTest, WhatARunRecordsAPlanReads) {
  const test::TemporaryFolder folder;
  folder.write("prompts", R"({"prompt_token_ids": [3, 5, 7, 9, 11], "max_tokens": 4}
{"prompt_token_ids": [8, 1, 60], "max_tokens": 4}
)");
  const std::string file = folder.file("routing.json");
  const CliResult result =
      run_cli({"generate", "--model", model, "--prompts", folder.file("prompts"),
               "--record-routing", file, "--stats", folder.file("stats.json"), "--ignore-eos"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json routing = read_json(file);
  // 8 tokens of prompts, and of each output all but the last one.
  expect_counts(routing, 8 + 2 * 3);
  const json stats = read_json(folder.file("stats.json"));
  EXPECT_EQ(stats["routing"]["rows"], routing["rows"]);
  EXPECT_EQ(stats["routing"]["touched_by_rows"], routing["touched_by_rows"]);
  const Arguments plan = {
      "plan", "--model",         model, "--machine", "spr-a100", "--batch", "1", "--input-tokens",
      "5",    "--output-tokens", "4",   "--routing", file};
  const CliResult planned = run_cli(plan);
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
}

/// Some of its layers have one FFN.
TEST(CliMixtureTest, WhatAModelOfBothKindsOfLayersRecordsAPlanReads) {
  const test::TemporaryFolder folder;
  folder.write("prompts", "{\"prompt_token_ids\": [3, 5, 7], \"max_tokens\": 4}\n");
  const std::string of_both = SLUICE_TEST_DATA_DIR "/golden/models/qwen3-moe-dense-layers";
  const std::string file = folder.file("routing.json");
  const CliResult recorded =
      run_cli({"generate", "--model", of_both, "--prompts", folder.file("prompts"),
               "--record-routing", file, "--ignore-eos"});
  ASSERT_EQ(recorded.exit_code, 0) << recorded.err;
  for (const Arguments& from :
       {Arguments{"--routing", file},
        Arguments{"--policy", "experts", "--policy-option", "hot=" + file}}) {
    const CliResult planned =
        run_cli(Arguments{"plan", "--model", of_both, "--machine", "spr-a100"} + from);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
  }
}

TEST(CliMixtureTest, ModelsWithoutExpertsRecordNone) {
  const test::TemporaryFolder folder;
  const Arguments record = {"--record-routing", folder.file("routing.json")};
  for (const Arguments& command : {Arguments{"generate", "--prompt", "Once"}, Arguments{"bench"}})
    expect_failure(run_cli(command + record), 2, {"--record-routing", "tiny has no experts"});
}

TEST(CliMixtureTest, NobodyCountsWhatADeviceComputes) {
  const test::TemporaryFolder folder;
  folder.write("prompts", "{\"prompt_token_ids\": [3, 5], \"max_tokens\": 2}\n");
  const Arguments record = {"--model",          model,
                            "--device",         "standin:64MiB",
                            "--record-routing", folder.file("routing.json")};
  const Arguments generate = {"generate", "--prompts", folder.file("prompts")};
  const Arguments bench = {"bench", "--prompt-tokens", "8", "--gen-tokens", "2"};
  for (const Arguments& command : {generate, bench})
    expect_failure(run_cli(command + record), 2, {"--record-routing", "leave out --device"});
}

TEST(CliMixtureTest, PlacementsOfHalfAnFfnAreRefused) {
  expect_failure(run_cli({"plan", "--model", model, "--machine", "spr-a100", "--policy", "lia",
                          "--policy-option", "decode=000001", "--policy-option", "opt1=off"}),
                 1, {"000001", "p5 and p6 must be the same"});
}

}  // namespace
}  // namespace sluice
