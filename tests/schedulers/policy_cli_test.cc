#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "schedulers/loader.h"
#include "tests/support/cli_process.h"

namespace sluice::testing {
namespace {

std::string fixture(const std::string& name) {
  return std::string(SLUICE_FIXTURE_DIR) + "/" + name + ".so";
}

/// A run over three prompts of different lengths, two at once, in f32.
std::vector<std::string> generate_with(const std::string& prompts, const std::string& policy,
                                       const std::string& option = "") {
  std::vector<std::string> arguments = {
      "generate", "--prompts", prompts, "--dtype",      "f32", "--batch",       "2",
      "-q",       "--policy",  policy,  "--max-tokens", "10",  "--temperature", "0"};
  if (!option.empty()) arguments.insert(arguments.end(), {"--policy-option", option});
  return arguments;
}

class PolicyCliTest : public ::testing::Test {
 protected:
  PolicyCliTest() {
    std::ofstream(prompts_) << "{\"id\": \"a\", \"prompt\": \"Once upon a time\"}\n"
                               "{\"id\": \"b\", \"prompt\": \"The cat and the dog went to the\"}\n"
                               "{\"id\": \"c\", \"prompt\": \"Lily\"}\n";
  }

  test::TemporaryFolder folder_;
  std::string prompts_ = folder_.file("prompts.jsonl");
};

TEST_F(PolicyCliTest, EveryShippedPolicyGivesTheSameTokens) {
  const CliResult expected = run_cli(generate_with(prompts_, "cpu-only"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  ASSERT_EQ(lines_of(expected.out).size(), 3U);
  for (const std::string& policy : find_policies({SLUICE_SHIPPED_DIR})) {
    const CliResult result = run_cli(generate_with(prompts_, policy));
    if (policy == "experts") {  // the model has none
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_NE(result.err.find("the model has no experts; take --policy lia"), std::string::npos)
          << result.err;
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << policy << ": " << result.err;
    EXPECT_EQ(result.out, expected.out) << policy;
  }
}

TEST_F(PolicyCliTest, SubBatchesGiveTheSameTokens) {
  const CliResult expected = run_cli(generate_with(prompts_, "cpu-only"));
  const CliResult result = run_cli(generate_with(prompts_, fixture("impossible"), "wrong=alone"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected.out);
}

/// The scheduler stops in the third prompt; finished ones are on disk.
TEST_F(PolicyCliTest, AStuckRunIsEndedAndKeepsWhatIsFinished) {
  const std::string output = folder_.file("out.jsonl");
  const auto run_with = [&](const std::string& seconds) {
    return CliProcess("/usr/bin/env",
                      {"SLUICE_WATCHDOG_SECONDS=" + seconds, sluice_program(), "generate",
                       "--prompts", prompts_, "--batch", "1", "--output", output, "-q",
                       "--overwrite", "--max-tokens", "2", "--policy", fixture("stuck")})
        .wait();
  };
  const CliResult result = run_with("2");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("no task has ended for 2 s"), std::string::npos) << result.err;
  EXPECT_EQ(lines_of(content_of(output)).size(), 2U) << content_of(output);
  EXPECT_NE(run_with("soon").err.find("SLUICE_WATCHDOG_SECONDS=soon"), std::string::npos);
}

/// As many tasks are left at most looks, one after the other ends.
TEST_F(PolicyCliTest, ARunThatGoesOnIsNotStuck) {
#if defined(__SANITIZE_THREAD__)
  const char* tokens = "48";  // many times slower
#else
  const char* tokens = "512";
#endif
  const CliResult result =
      CliProcess("/usr/bin/env", {"SLUICE_WATCHDOG_SECONDS=1", sluice_program(), "bench", "--batch",
                                  "16", "--prompt-tokens", "0", "--gen-tokens", tokens, "--repeat",
                                  "3", "--policy", "cpu-only"})
          .wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(PolicyCliTest, CallsComeInTheDocumentedOrder) {
  const std::string policy = fixture("in_order");
  const std::vector<std::string> plan = {"plan",     "--model",  "opt-30b", "--machine",
                                         "spr-a100", "--policy", policy,    "--batch"};
  const auto succeeds = [](std::vector<std::string> arguments,
                           const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CliResult result = run_cli(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  succeeds(plan, {"1,8"});
  succeeds(plan, {"1", "--explain"});
  succeeds({"plan", "--model", "opt-30b", "--machine", "spr-a100", "--policy", policy},
           {"--map", folder_.file("map.svg")});
  succeeds(generate_with(prompts_, policy), {});
}

TEST_F(PolicyCliTest, PlanSaysThatItDoesNotKnowASchedulerOfThePolicys) {
  const auto words_of = [&](const char* policy) {
    const CliResult result = run_cli({"plan", "--model", "opt-30b", "--machine", "spr-a100",
                                      "--batch", "8", "--policy", fixture(policy)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_NE(words_of("stuck").find("policy stuck has a scheduler of its own"), std::string::npos);
  EXPECT_EQ(words_of("in_order").find("scheduler"), std::string::npos);
  // Nor where it chooses among all.
  std::filesystem::copy(fixture("stuck"), folder_.path());
  const CliResult chosen =
      CliProcess("/usr/bin/env", {"SLUICE_POLICY_PATH=" + folder_.path().string(), sluice_program(),
                                  "plan", "--model", "opt-30b", "--machine", "spr-a100"})
          .wait();
  EXPECT_NE(chosen.err.find("; stuck with the shared scheduler, not"), std::string::npos)
      << chosen.err;
}

/// Whatever else lies in the folders that policies are searched for in.
TEST_F(PolicyCliTest, WhatIsNoPolicyIsLeftOutOfTheChoice) {
  std::ofstream(folder_.file("stray.so")) << "no shared object";
  const CliResult result =
      CliProcess("/usr/bin/env", {"SLUICE_POLICY_PATH=" + folder_.path().string(), sluice_program(),
                                  "plan", "--batch", "1"})
          .wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("stray"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("is fastest"), std::string::npos) << result.err;
}

TEST_F(PolicyCliTest, SaysWhenThereIsNoGpu) {
  const CliResult result = run_cli(generate_with(prompts_, "gpu-only"));
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("everything runs on the CPU"), std::string::npos) << result.err;
}

TEST_F(PolicyCliTest, SaysWhatIsWrongWithAPolicy) {
  const auto expect_refused = [&](const std::string& policy, const std::string& option,
                                  const std::vector<std::string>& parts) {
    expect_failure(run_cli(generate_with(prompts_, policy, option)), 1, parts);
  };
  expect_refused("cpu-onyl", "", {"cpu-onyl", "there are cpu-only"});
  expect_refused(fixture("old_api"), "", {"API version 0"});
  expect_refused(fixture("impossible"), "wrong=tier",
                 {"impossible", "'s fc1 is to live in", "cxl"});
  expect_refused(fixture("impossible"), "wrong=layers", {"layers"});
  expect_refused(fixture("impossible"), "wrong=mini-batches", {"0 mini-batches"});
  expect_refused(fixture("impossible"), "wrong=request", {"request 4711"});
  expect_refused(fixture("impossible"), "wrong=twice", {"twice"});
  expect_refused(fixture("impossible"), "wrong=empty", {"empty"});
  expect_refused(fixture("impossible"), "wrong=nothing", {"none of 2 requests"});
  expect_refused(fixture("throwing"), "in=place", {"throwing", "place", "out of ideas"});
  expect_refused(fixture("throwing"), "in=number", {"no std::exception"});
}

/// The stand-in is set up for the plan; what runs has to be the same.
TEST_F(PolicyCliTest, RefusesAMemoryPlanThatIsNotTheOneOfThePlan) {
  Arguments arguments = generate_with(prompts_, fixture("impossible"), "wrong=memory");
  arguments.insert(arguments.end(), {"--device", "standin:64MiB"});
  expect_failure(run_cli(arguments), 1,
                 {"policy impossible: plan_memory: ", "another home of layer 5", "stay the same"});
}

TEST_F(PolicyCliTest, RefusesMalformedOptions) {
  for (const char* option : {"depth", "=3"}) {
    expect_failure(run_cli(generate_with(prompts_, "cpu-only", option)), 2,
                   {"--policy-option", "key=value"});
  }
  std::vector<std::string> twice = generate_with(prompts_, "cpu-only", "a=1");
  twice.insert(twice.end(), {"--policy-option", "a=2"});
  expect_failure(run_cli(twice), 2, {"a is given twice"});
  expect_failure(run_cli(generate_with(prompts_, "cpu-only", "depth=3")), 2,
                 {"depth", "cpu-only has no options"});
}

TEST_F(PolicyCliTest, BenchNamesThePolicy) {
  const CliResult result = run_cli({"bench", "--policy", fixture("impossible"), "--policy-option",
                                    "wrong=alone", "--prompt-tokens", "4", "--gen-tokens", "4",
                                    "--batch", "3", "--repeat", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\"policy\": \"impossible\""), std::string::npos) << result.out;
}

}  // namespace
}  // namespace sluice::testing
