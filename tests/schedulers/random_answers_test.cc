// A policy that answers at random (tests/engine/policies/at_random.cc), through the checks, `plan`,
// `simulate` and runs. Each ends well, or with one line that names the policy and the call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "schedulers/loader.h"
#include "tests/schedulers/policy_costs.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using test::PolicyCosts;
using testing::Arguments;
using testing::CliResult;
using testing::operator+;
using testing::run_cli;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int fewer = 8;  // each process takes many times as long
#else
constexpr int fewer = 1;
#endif
constexpr int num_checked = 1000 / fewer;
constexpr int num_planned = 300 / fewer;
constexpr int num_simulated = 80 / fewer;
constexpr int num_run = 32 / fewer;
constexpr int num_on_stand_in = 20 / fewer;

/// Of a thousand answers so many are nonsense: none, few, many.
int wrong_of(int seed) { return std::array{0, 2, 20, 100}.at(static_cast<std::size_t>(seed) % 4); }

std::map<std::string, std::string> options_of(int seed) {
  return {{"seed", std::to_string(seed)}, {"wrong", std::to_string(wrong_of(seed))}};
}

Arguments policy_of(int seed) {
  Arguments arguments = {"--policy", SLUICE_AT_RANDOM};
  for (const auto& [key, value] : options_of(seed))
    arguments = arguments + Arguments{"--policy-option", fmt::format("{}={}", key, value)};
  return arguments;
}

/// A line that says which answer of the policy's cannot be followed, and why. Who answers without
/// nonsense may ask for more memory than there is, or for requests of two kinds.
void expect_refusal(const std::string& line, int seed) {
  static const std::regex refusal(
      "(sluice: )?([a-z0-9.-]+ on [a-z0-9-]+: )?policy at-random: "
      "(configure|start|plan_memory|pipeline|place|plan_iteration): [^\\x01-\\x1f]{5,2500}");
  EXPECT_TRUE(std::regex_match(line, refusal)) << "seed " << seed << ": " << line;
  EXPECT_EQ(line.find("it crashed"), std::string::npos) << "seed " << seed << ": " << line;
  if (wrong_of(seed) > 0) return;
  const bool lacks_memory = line.find("it needs") != std::string::npos;
  const bool has_two_kinds = line.find("hbm_requests is") != std::string::npos;
  const bool has_table_on_disk = line.find("on a disk; only") != std::string::npos;
  EXPECT_TRUE(lacks_memory || has_two_kinds || has_table_on_disk)
      << "seed " << seed << ": " << line;
}

/// What is not an error, but said on stderr all the same.
bool is_note(const std::string& line) {
  return line.starts_with("offloading is slower than not: ") ||
         line.ends_with("there is no GPU here that Sluice can use; everything runs on the CPU");
}

/// Success, or one line; says which.
bool answers_or_refuses(const CliResult& result, int seed) {
  std::vector<std::string> errors = testing::lines_of(result.err);
  std::erase_if(errors, is_note);
  if (result.exit_code == 0) {
    EXPECT_TRUE(errors.empty()) << "seed " << seed << ": " << result.err;
    EXPECT_NE(result.out, "") << "seed " << seed;
    return true;
  }
  EXPECT_EQ(result.exit_code, 1) << "seed " << seed << ": " << result.err;
  EXPECT_EQ(errors.size(), 1U) << "seed " << seed << ": " << result.err;
  if (!errors.empty()) expect_refusal(errors.front(), seed);
  return false;
}

/// Some of both: a test in which all runs end the same way shows little.
void expect_both(int answered, int asked) {
  EXPECT_GT(answered, 0);
  EXPECT_LT(answered, asked);
}

/// One run, asked as the engine asks; what comes through the checks can be followed.
class Asked {
 public:
  explicit Asked(int seed) : policy_(SLUICE_AT_RANDOM, options_of(seed)) {
    costs_.has_gpu = seed % 3 > 0;
    costs_.capacities = {{Tier::ddr, std::uint64_t{1} << 30}};
    if (costs_.has_gpu) costs_.capacities[Tier::hbm] = std::uint64_t{1} << 20;
    if (seed % 5 > 2) costs_.capacities[Tier::disk] = std::uint64_t{1} << 30;
    workload_.batch = 1 + seed % 7;
  }

  void run() {
    policy_.policy().start(costs_, workload_);
    memory_ = policy_.policy().plan_memory();
    check_memory();
    std::vector<RequestView> requests;
    for (std::int64_t id = 0; id < workload_.batch; ++id)
      requests.push_back({.id = id, .prompt_tokens_left = workload_.input_tokens});
    for (int iteration = 0; iteration < 12; ++iteration) iterate(requests);
  }

 private:
  bool is_there(Tier tier) const { return tier <= Tier::disk && costs_.capacities.contains(tier); }
  bool is_there(Device device) const { return device <= Device::cpu && costs_.has(device); }

  void check_memory() const {
    ASSERT_EQ(memory_.layers.size(), 2U);
    for (const LayerHomes& homes : memory_.layers) {
      for (const Tier home : homes.weights) EXPECT_TRUE(is_there(home));
      EXPECT_TRUE(is_there(homes.kv));
    }
    EXPECT_TRUE(is_there(memory_.embedding));
    EXPECT_TRUE(is_there(memory_.lm_head));
    EXPECT_TRUE(is_there(memory_.lm_head_device.value_or(Device::cpu)));
    EXPECT_GE(memory_.hbm_requests, 0);
  }

  void iterate(std::vector<RequestView>& requests) {
    const IterationPlan plan = policy_.policy().plan_iteration(requests);
    EXPECT_FALSE(plan.sub_batches.empty());
    std::set<std::int64_t> seen;
    for (const SubBatchPlan& sub_batch : plan.sub_batches) {
      EXPECT_FALSE(sub_batch.requests.empty());
      for (const std::int64_t id : sub_batch.requests) {
        ASSERT_TRUE(id >= 0 && id < workload_.batch) << id;
        EXPECT_TRUE(seen.insert(id).second) << id;
        requests[static_cast<std::size_t>(id)].prompt_tokens_left = 0;
      }
      place(static_cast<std::int64_t>(sub_batch.requests.size()));
    }
  }

  void place(std::int64_t batch) {
    for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
      const Placement placement = policy_.policy().place(
          static_cast<std::int64_t>(layer), BatchShape::decode(batch, 9), memory_.layers[layer]);
      for (const Sublayer sublayer : layer_sublayers) EXPECT_TRUE(is_there(placement[sublayer]));
    }
  }

  PolicyCosts costs_;
  Workload workload_{.batch = 1, .input_tokens = 8, .output_tokens = 8};
  LoadedPolicy policy_;
  MemoryPlan memory_;
};

TEST(RandomAnswersTest, WhatThePolicysChecksLetThroughCanBeFollowed) {
  int answered = 0;
  for (int seed = 0; seed < num_checked; ++seed) {
    try {
      Asked(seed).run();
      ++answered;
    } catch (const std::exception& error) {
      expect_refusal(error.what(), seed);
    }
  }
  expect_both(answered, num_checked);
}

/// Machines with and without CXL memory and a disk, models that fit and one that does not.
Arguments point_of(int seed) {
  const std::array machines = {"spr-a100", "icelake-a100-ssd", "cxl-asic"};
  const std::array models = {"tiny", "tiny", "tiny", "opt-30b"};
  return {"--model",         models.at(static_cast<std::size_t>(seed) / 4 % models.size()),
          "--machine",       machines.at(static_cast<std::size_t>(seed) % machines.size()),
          "--batch",         std::to_string(1 + seed % 5),
          "--input-tokens",  "32",
          "--output-tokens", "12"};
}

TEST(RandomAnswersTest, PlansEndWellOrWithALine) {
  int answered = 0;
  for (int seed = 0; seed < num_planned; ++seed) {
    const CliResult result = run_cli(Arguments{"plan"} + point_of(seed) + policy_of(seed));
    answered += answers_or_refuses(result, seed) ? 1 : 0;
  }
  expect_both(answered, num_planned);
}

TEST(RandomAnswersTest, SimulationsEndWellOrWithALine) {
#ifndef SLUICE_SIMULATES
  GTEST_SKIP() << "built without the simulator";
#endif
  int answered = 0;
  for (int seed = 0; seed < num_simulated; ++seed) {
    const CliResult result =
        run_cli(Arguments{"simulate", "--json"} + point_of(seed) + policy_of(seed));
    answered += answers_or_refuses(result, seed) ? 1 : 0;
  }
  expect_both(answered, num_simulated);
}

class RandomAnswersRunTest : public ::testing::Test {
 protected:
  RandomAnswersRunTest() {
    std::ofstream(prompts_) << "{\"id\": \"a\", \"prompt\": \"Once upon a time\"}\n"
                               "{\"id\": \"b\", \"prompt\": \"The cat and the dog went to the\"}\n"
                               "{\"id\": \"c\", \"prompt\": \"Lily\"}\n";
  }

  CliResult generate(const Arguments& more) const {
    return run_cli(Arguments{"generate", "--prompts", prompts_, "--batch", "2", "--max-tokens", "6",
                             "-q", "--dtype", "f32", "--temperature", "0"} +
                   more);
  }

  /// Runs that end well have the tokens of cpu-only.
  void expect_tokens(int num_seeds, const Arguments& device) const {
    const CliResult expected = generate({"--policy", "cpu-only"});
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    int answered = 0;
    for (int seed = 0; seed < num_seeds; ++seed) {
      const CliResult result = generate(policy_of(seed) + device);
      if (!answers_or_refuses(result, seed)) continue;
      ++answered;
      EXPECT_EQ(result.out, expected.out) << "seed " << seed;
    }
    expect_both(answered, num_seeds);
  }

 private:
  test::TemporaryFolder folder_;
  std::string prompts_ = folder_.file("prompts.jsonl");
};

TEST_F(RandomAnswersRunTest, RunsGiveTheSameTokensOrALine) {
  expect_tokens(num_run, {"--device", "cpu"});
}

TEST_F(RandomAnswersRunTest, RunsOnTheStandInGiveTheSameTokensOrALine) {
  expect_tokens(num_on_stand_in, {"--device", "standin:256MiB"});
}

}  // namespace
}  // namespace sluice
