// `sluice replay` with the real engine, seen from outside.
#include <gtest/gtest.h>

#include <fstream>
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

class CliReplayTest : public ::testing::Test {
 protected:
  /// Requests of a trace, with times in seconds and lengths.
  std::string trace(const std::vector<std::array<double, 3>>& requests) const {
    const std::string path = folder_.file("trace.jsonl");
    std::ofstream file(path);
    for (const auto& [arrival_s, input, output] : requests) {
      file << json{{"arrival_s", arrival_s},
                   {"input_tokens", static_cast<int>(input)},
                   {"output_tokens", static_cast<int>(output)}}
                  .dump()
           << '\n';
    }
    return path;
  }
  static json points(const Arguments& arguments) {
    const CliResult result =
        run_cli(Arguments{"replay", "--dtype", "f32", "--json", "-q"} + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }

  test::TemporaryFolder folder_;
};

TEST_F(CliReplayTest, RequestsComeWhenTheirTraceSays) {
  const json point =
      points({"--trace", trace({{0, 20, 5}, {0.3, 40, 3}, {0.6, 10, 1}, {0.6, 100, 8}})}).at(0);
  EXPECT_EQ(point["requests"], 4);
  EXPECT_EQ(point["completed"], 4);
  EXPECT_EQ(point["arrivals"], "trace");
  // The second comes to an engine that has long been done with the first: an iteration each token.
  EXPECT_EQ(point["iterations"]["one_sub_batch"], 5 + 3 + 8);
  EXPECT_TRUE(point["little_error"].is_number());
}

TEST_F(CliReplayTest, EachRateAndKindOfLengthsIsAPoint) {
  const json all = points({"--lengths", "uniform:30,10,uniform:20,20", "--arrivals",
                           "poisson:100,200", "--requests", "40", "--slo", "ttft=60"});
  ASSERT_EQ(all.size(), 4U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const json& point = all[i];
    EXPECT_EQ(point["workload"], i < 2 ? "uniform:30,10" : "uniform:20,20");
    EXPECT_EQ(point["rate_per_s"], i % 2 == 0 ? 100 : 200);
    EXPECT_EQ(point["completed"], 40);
    EXPECT_EQ(point["slo_attainment"], 1);
    EXPECT_EQ(point["goodput_per_s"], 200);
    EXPECT_GT(point["requests_per_s"], 0);
    EXPECT_GT(point["busy_share"]["cpu"], 0);
    // A request of nine iterations or more is counted up to one of them late.
    EXPECT_LT(point["little_error"], 1.0 / 9);
  }
}

TEST_F(CliReplayTest, SoManyAreInFlight) {
  const json point = points({"--lengths", "uniform:20,10", "--arrivals", "closed:1", "--requests",
                             "6", "--prefix-cache", "off"})
                         .at(0);
  EXPECT_EQ(point["completed"], 6);
  EXPECT_EQ(point["preemptions"], 0);
  EXPECT_LT(point["queue_s"]["mean"], point["ttft_s"]["mean"]);
  // One after the other, each has as many iterations as tokens: 9 to 11.
  EXPECT_GE(point["iterations"]["one_sub_batch"], 6 * 9);
  EXPECT_LE(point["iterations"]["one_sub_batch"], 6 * 11);
}

TEST_F(CliReplayTest, WherePagesRunOutLaterRequestsMakeWay) {
  const json point = points({"--lengths", "uniform:60,80", "--arrivals", "all", "--requests", "24",
                             "--max-sequences", "16", "--kv-tokens", "1024"})
                         .at(0);
  EXPECT_EQ(point["completed"], 24);
  EXPECT_GT(point["preemptions"], 0);
}

// On machines that are described, by the cost model alone.

const Arguments on_t4 = {
    "replay",     "--machine",          "g4-4xlarge", "--estimate",      "--model",
    "llama-2-7b", "--max-batch-tokens", "832",        "--max-sequences", "128",
    "--json"};

json estimated(const Arguments& arguments) {
  const CliResult result = run_cli(on_t4 + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

TEST_F(CliReplayTest, EstimatesHaveAPointForEachMachinePolicyAndRate) {
  const std::string load = folder_.file("load.svg");
  const json all = json::parse(
      run_cli({"replay", "--machine", "g4-4xlarge,g5-2xlarge", "--estimate", "--model",
               "llama-2-7b", "--policy", "gpu-only,neo", "--lengths", "uniform:200,30",
               "--requests", "60", "--arrivals", "poisson:1,4", "--json", "--plot", load})
          .out);
  ASSERT_EQ(all.size(), 8U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const json& point = all[i];
    EXPECT_EQ(point["machine"], i < 4 ? "g4-4xlarge" : "g5-2xlarge");
    EXPECT_EQ(point["policy"], i / 2 % 2 == 0 ? "gpu-only" : "neo");
    EXPECT_EQ(point["rate_per_s"], i % 2 == 0 ? 1 : 4);
    EXPECT_EQ(point["model"], "llama-2-7b");
    EXPECT_EQ(point["completed"], 60);
    EXPECT_LT(point["little_error"], 0.02);
    std::string busiest = "cpu";
    for (const auto& [name, share] : point["busy_share"].items()) {
      EXPECT_LE(share, 1.0 + 1e-9);
      if (share > point["busy_share"][busiest]) busiest = name;
    }
    EXPECT_EQ(point["binding_resource"], busiest);
    EXPECT_GT(point["lower_bound_requests_per_s"], 0);
  }
  EXPECT_NE(testing::content_of(load).find("<svg"), std::string::npos);
}

TEST_F(CliReplayTest, TheBusiestPartBoundsWhatAllAtOnceReach) {
  const json point = estimated({"--policy", "gpu-only", "--lengths", "uniform:200,30", "--requests",
                                "60", "--arrivals", "all"})
                         .at(0);
  // The GPU never waits: everything is there, and nothing crosses.
  EXPECT_EQ(point["binding_resource"], "gpu");
  EXPECT_NEAR(point["busy_share"]["gpu"], 1, 0.001);
}

TEST_F(CliReplayTest, TheSameSeedGivesTheSameBytes) {
  const Arguments seeded = on_t4 + Arguments{"--policy",          "neo",        "--lengths",
                                             "uniform:200,30",    "--requests", "60",
                                             "--arrivals",        "poisson:3",  "--kv-tokens",
                                             "hbm=864,ddr=20000", "--seed",     "7"};
  const CliResult first = run_cli(seeded);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(run_cli(seeded).out, first.out);
  Arguments other = seeded;
  other.back() = "8";
  EXPECT_NE(run_cli(other).out, first.out);
}

TEST_F(CliReplayTest, PoolsHaveTheSizesThatWereSaid) {
  const Arguments many = {"--lengths", "uniform:400,40", "--requests", "40", "--arrivals", "all"};
  // One request at a time, or two short ones: each takes 25 to 31 pages of 54.
  const CliResult hbm =
      run_cli(on_t4 + many + Arguments{"--policy", "gpu-only", "--kv-tokens", "hbm=864,ddr=20000"});
  ASSERT_EQ(hbm.exit_code, 0) << hbm.err;
  EXPECT_NE(hbm.err.find("policy gpu-only keeps all KV in HBM: ddr=20000 of --kv-tokens is not"),
            std::string::npos)
      << hbm.err;
  const json one_pool = json::parse(hbm.out).at(0);
  EXPECT_GT(one_pool["iterations"]["one_sub_batch"], 20 * 36);
  // With KV in DDR, too, all run at once.
  const json both =
      estimated(many + Arguments{"--policy", "neo", "--kv-tokens", "hbm=864,ddr=20000"}).at(0);
  EXPECT_LT(both["ttft_s"]["p99"], one_pool["ttft_s"]["p99"]);
  EXPECT_GT(both["busy_share"]["cpu"], 0.05);
  // And here nothing is in HBM but weights.
  const CliResult ddr =
      run_cli(on_t4 + many + Arguments{"--policy", "flexgen", "--kv-tokens", "hbm=864,ddr=20000"});
  ASSERT_EQ(ddr.exit_code, 0) << ddr.err;
  EXPECT_NE(ddr.err.find("policy flexgen keeps no KV in HBM: hbm=864"), std::string::npos)
      << ddr.err;
  EXPECT_EQ(json::parse(ddr.out).at(0)["preemptions"], 0);
}

TEST_F(CliReplayTest, PoolsOfAModelThatRunsHaveTheirSizes) {
  const CliResult result = run_cli({"replay", "--lengths", "uniform:60,80", "--arrivals", "all",
                                    "--requests", "24", "--max-sequences", "16", "--kv-tokens",
                                    "hbm=500,ddr=1024", "--policy", "cpu-only", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("policy cpu-only keeps no KV in HBM: hbm=500"), std::string::npos)
      << result.err;
  EXPECT_EQ(json::parse(result.out).at(0)["completed"], 24);
  EXPECT_GT(json::parse(result.out).at(0)["preemptions"], 0);
}

TEST_F(CliReplayTest, WhatNoMachineCanReplayIsOneLine) {
  const Arguments few = {"--lengths", "uniform:400,40", "--requests", "4"};
  const auto on = [&](const Arguments& arguments) {
    return run_cli(Arguments{"replay", "--estimate"} + few + arguments);
  };
  const Arguments model = {"--model", "llama-2-7b"};
  const Arguments t4 = model + Arguments{"--machine", "g4-4xlarge"};
  expect_failure(run_cli(Arguments{"replay", "--estimate"} + few), 2,
                 {"--estimate needs --machine"});
  expect_failure(on(model + Arguments{"--machine", "no-such"}), 1, {"no-such"});
  expect_failure(on(t4 + Arguments{"--policy", "no-such"}), 1, {"no-such"});
  expect_failure(on({"--machine", "g4-4xlarge", "--model", "no-such"}), 1, {"no-such"});
  expect_failure(on(t4 + Arguments{"--dtype", "f32"}), 2, {"--dtype", "--machine"});
  expect_failure(on(t4 + Arguments{"--hbm", "1GiB"}), 2, {"--hbm", "--machine"});
  expect_failure(on(t4 + Arguments{"--cuda-graphs", "on"}), 2, {"--cuda-graphs", "--machine"});
  expect_failure(on(t4 + Arguments{"--threads", "2"}), 1, {"--threads", "g4-4xlarge"});
  expect_failure(on(t4 + Arguments{"--device", "cpu"}), 1, {"--device", "g4-4xlarge"});
  expect_failure(on(t4 + Arguments{"--policy", "gpu-only", "--kv-tokens", "hbm=100000"}), 1,
                 {"--kv-tokens hbm=100000", "hbm"});
  expect_failure(on(t4 + Arguments{"--policy", "neo", "--kv-tokens", "hbm=5000,ddr=1000"}), 1,
                 {"hbm=5000,ddr=1000", "hbm has room for"});
  expect_failure(on(t4 + Arguments{"--policy", "neo", "--kv-tokens", "hbm=800,ddr=1000000"}), 1,
                 {"ddr=1000000", "ddr has room for"});
  expect_failure(on(t4 + Arguments{"--policy", "gpu-only", "--kv-tokens", "hbm=300,ddr=9000"}), 1,
                 {"hbm=300", "--max-model-len", "gpu-only gets 304"});
  for (const char* tokens :
       {"hbm=", "hbm=0", "hbm=5,hbm=6", "cxl=7", "5,ddr=6", "hbm=5,", "-1", ""})
    expect_failure(on(t4 + Arguments{"--kv-tokens", tokens}), 2,
                   {std::string("--kv-tokens ") + tokens});
  expect_failure(run_cli(Arguments{"replay", "--policy", "lia,neo"} + few), 2, {"need --machine"});
}

TEST_F(CliReplayTest, PicturesAreDrawn) {
  const std::string load = folder_.file("load.svg");
  const std::string time = folder_.file("time.png");
  points({"--lengths", "uniform:20,10", "--arrivals", "poisson:50,100", "--requests", "20",
          "--plot", load, "--plot-time", time});
  EXPECT_NE(testing::content_of(load).find("<svg"), std::string::npos);
  EXPECT_EQ(testing::content_of(time).substr(1, 3), "PNG");
}

TEST_F(CliReplayTest, WhatCannotBeReplayedIsOneLine) {
  expect_failure(run_cli({"replay"}), 2, {"--trace FILE", "--lengths"});
  expect_failure(run_cli({"replay", "--lengths", "uniform:10"}), 2, {"--lengths uniform:10"});
  expect_failure(run_cli({"replay", "--lengths", "uniform:10,10", "--format", "azure"}), 2,
                 {"--format needs --trace"});
  expect_failure(run_cli({"replay", "--lengths", "uniform:10,10", "--arrivals", "soon"}), 2,
                 {"--arrivals soon"});
  expect_failure(run_cli({"replay", "--lengths", "uniform:10,10", "--plot", "a.jpg"}), 2,
                 {"--plot a.jpg"});
  expect_failure(run_cli({"replay", "--trace", trace({{0, 600, 10}})}), 1,
                 {"610 tokens", "512 are possible"});
  expect_failure(run_cli({"replay", "--trace", trace({{1, 5, 5}, {0, 5, 5}})}), 1,
                 {"trace.jsonl, line 2"});
  expect_failure(run_cli({"replay", "--trace", "/no/such"}), 1, {"/no/such"});
}

}  // namespace
}  // namespace sluice
