// `sluice replay --machine` on the simulated machine, beside its estimate.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

json points(const Arguments& arguments) {
  const CliResult result = run_cli(Arguments{"replay", "--json"} + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

struct Case {
  const char* name;
  Arguments arguments;
};

class SimulatedReplayTest : public ::testing::TestWithParam<Case> {};

/// Both are deterministic, and all requests are there from the begin on: with times between them,
/// which of few completions lie in the middle is a matter of chance.
TEST_P(SimulatedReplayTest, EstimatesComeClose) {
  const json estimates = points(GetParam().arguments + Arguments{"--estimate"});
  const json simulations = points(GetParam().arguments);
  ASSERT_EQ(estimates.size(), simulations.size());
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    const json& estimate = estimates[i];
    const json& simulation = simulations[i];
    for (const char* field : {"requests_per_s", "output_tokens_per_s"}) {
      const double share = estimate[field].get<double>() / simulation[field].get<double>();
      fmt::print("{} {}: {} estimated {:.4g}, simulated {:.4g}: {:+.1f} %\n", GetParam().name,
                 simulation["policy"].get<std::string>(), field, estimate[field].get<double>(),
                 simulation[field].get<double>(), 100 * (share - 1));
      EXPECT_NEAR(share, 1, 0.08);
    }
    EXPECT_EQ(estimate["completed"], simulation["completed"]);
    EXPECT_EQ(estimate["binding_resource"], simulation["binding_resource"]);
    EXPECT_EQ(estimate["busy_share"].size(), simulation["busy_share"].size());
    for (const json* point : {&estimate, &simulation}) EXPECT_LT((*point)["little_error"], 0.02);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , SimulatedReplayTest,
    ::testing::Values(
        Case{"KvInHbmAndInDdr",
             {"--machine", "g5-4xlarge", "--model", "llama-3.1-8b", "--policy", "gpu-only,neo",
              "--lengths", "uniform:1000,60", "--requests", "40", "--arrivals", "all",
              "--max-batch-tokens", "20480", "--kv-tokens", "hbm=26400,ddr=60000"}},
        Case{"StreamedWeights",
             {"--machine", "spr-a100", "--model", "opt-30b", "--policy", "flexgen,all-cpu",
              "--lengths", "uniform:200,20", "--requests", "12", "--arrivals", "all",
              "--max-sequences", "8"}},
        Case{"CoresInGroups",
             {"--machine", "xeon-6151-2", "--model", "sheared-llama-1.3b", "--policy", "cpu-only",
              "--cpu-plan", "static", "--lengths", "uniform:100,20", "--requests", "12",
              "--arrivals", "closed:4"}},
        Case{"ProcessorAlone",
             {"--machine", "g4-4xlarge", "--model", "llama-2-7b", "--policy", "cpu-only",
              "--lengths", "uniform:100,20", "--requests", "12", "--arrivals", "closed:4"}}),
    [](const auto& one) { return one.param.name; });

/// One request after the other, as `plan` counts them: tokens after the first take as long.
TEST(SimulatedReplayCliTest, CoresComputeByTheirPlan) {
  const auto seconds_over_plan = [](const std::string& name) {
    const Arguments same = {"--machine", "xeon-6151-2", "--model", "sheared-llama-1.3b",
                            "--policy",  "cpu-only",    "--json",  "--cpu-plan",
                            name};
    const CliResult planned = run_cli(
        Arguments{"plan", "--batch", "1", "--input-tokens", "100", "--output-tokens", "40"} + same);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    const CliResult replayed =
        run_cli(Arguments{"replay", "--estimate", "--lengths", "uniform:100,40", "--requests", "4",
                          "--arrivals", "closed:1", "--max-sequences", "1"} +
                same);
    EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
    EXPECT_NE(replayed.err.find("CPU plan " + name + " on xeon-6151-2"), std::string::npos)
        << replayed.err;
    const json point = json::parse(replayed.out).at(0);
    const json plan = json::parse(planned.out).at(0);
    for (const char* phase : {"prefill", "decode"})
      EXPECT_EQ(point["cpu_plan"][phase]["groups"], plan["cpu_plan"][phase]["groups"]) << name;
    return point["tpot_s"]["mean"].get<double>() / plan["tpot_s"].get<double>();
  };
  EXPECT_NEAR(seconds_over_plan("interleaved"), 1, 0.02);
  EXPECT_NEAR(seconds_over_plan("static"), 1, 0.02);
}

TEST(SimulatedReplayCliTest, TheSameSeedGivesTheSameBytes) {
  const Arguments arguments = {"replay",        "--machine",  "g4-4xlarge",  "--model",
                               "llama-2-7b",    "--policy",   "neo",         "--lengths",
                               "uniform:60,10", "--requests", "20",          "--arrivals",
                               "poisson:3",     "--json",     "--kv-tokens", "hbm=500,ddr=9000"};
  const CliResult first = run_cli(arguments);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(json::parse(first.out).at(0)["completed"], 20);
  EXPECT_EQ(run_cli(arguments).out, first.out);
}

TEST(SimulatedReplayCliTest, WhatCannotBeSimulatedIsOneLine) {
  const Arguments few = {"replay",    "--machine",      "g4-4xlarge", "--model", "llama-2-7b",
                         "--lengths", "uniform:400,40", "--requests", "4"};
  expect_failure(
      run_cli(few + Arguments{"--policy", "gpu-only", "--kv-tokens", "hbm=300,ddr=9000"}), 1,
      {"gpu-only", "--kv-tokens hbm=300"});
  expect_failure(run_cli({"replay", "--machine", "g4-4xlarge", "--trace", "-"}), 2,
                 {"--trace -", "give a file"});
}

}  // namespace
}  // namespace sluice
