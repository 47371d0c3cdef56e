// NEO's baselines (sections 3.1 and 5.1): what lives where, who runs with whom, and who attends.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedulers/schedule.h"
#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

using test::Planned;

constexpr Workload workload = {.batch = 8, .input_tokens = 200, .output_tokens = 50};

RequestView decoding(std::int64_t id) {
  return {.id = id, .prompt_tokens_left = 0, .context_tokens = 200, .kv = Tier::ddr};
}
RequestView prompt(std::int64_t id) {
  return {.id = id, .prompt_tokens_left = 200, .context_tokens = 0, .kv = Tier::ddr};
}

class BaselineTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { memory_ = policy_.memory(workload); }
  std::string placed(const BatchShape& shape) {
    return policy_.policy.policy().place(0, shape, memory_.layers.front()).to_string();
  }

  Planned policy_{GetParam(), {}, "g4-4xlarge", "llama-2-7b"};
  MemoryPlan memory_;
};

TEST_P(BaselineTest, WeightsLiveInHbmAndKvInDdr) {
  EXPECT_EQ(memory_.hbm_requests, 0);
  for (const LayerHomes& homes : memory_.layers)
    EXPECT_EQ(homes, LayerHomes::all(Tier::hbm, Tier::ddr));
}

TEST_P(BaselineTest, OnlyDecodeAttentionIsTheCpus) {
  EXPECT_EQ(placed(BatchShape::prefill(1, 200)), "000000");
  EXPECT_EQ(placed(BatchShape::decode(8, 200)), "011000");
}

TEST_P(BaselineTest, IsTakenOnlyWhenItIsAskedFor) { EXPECT_TRUE(policy_.policy.is_baseline()); }

INSTANTIATE_TEST_SUITE_P(Policies, BaselineTest,
                         testing::Values("fastdecode", "symmetric", "simple-offload"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(SymmetricTest, PromptsRunByThemselvesAndOthersInHalves) {
  Planned symmetric("symmetric", {}, "g4-4xlarge", "llama-2-7b");
  symmetric.memory(workload);
  CheckedPolicy& policy = symmetric.policy.policy();
  const IterationPlan prompts = policy.plan_iteration({decoding(0), prompt(1), prompt(2)});
  ASSERT_EQ(prompts.sub_batches.size(), 1U);
  EXPECT_EQ(prompts.sub_batches[0].requests, (std::vector<std::int64_t>{1, 2}));
  const IterationPlan halves =
      policy.plan_iteration({decoding(0), decoding(1), decoding(2), decoding(3), decoding(4)});
  ASSERT_EQ(halves.sub_batches.size(), 2U);
  EXPECT_EQ(halves.sub_batches[0].requests.size(), 3U);
  EXPECT_EQ(halves.sub_batches[1].requests.size(), 2U);
  EXPECT_EQ(policy.plan_iteration({decoding(7)}).sub_batches.size(), 1U);
}

/// A pool of 1,000 pages in DDR, and requests that decode.
Situation decoding_in_ddr(std::int64_t count) {
  Situation now{.pools = {{Tier::ddr, 1000, 500}},
                .free_sequences = 10,
                .max_batch_tokens = 832,
                .prefill_chunk_tokens = 832,
                .max_skips = 16};
  for (std::int64_t id = 0; id < count; ++id) {
    now.running.push_back(decoding(id));
    now.running.back().pages = 13;
  }
  return now;
}

TEST(FastDecodeTest, AllThatCanRunDoInTwoSubBatches) {
  Planned fastdecode("fastdecode", {}, "g4-4xlarge", "llama-2-7b");
  fastdecode.memory(workload);
  const std::optional<Schedule> schedule =
      fastdecode.policy.policy().schedule(decoding_in_ddr(200));
  ASSERT_TRUE(schedule);
  ASSERT_EQ(schedule->sub_batches.size(), 2U);
  // All are alike, so that both halves are.
  EXPECT_EQ(schedule->sub_batches[0].size(), 100U);
  EXPECT_EQ(schedule->sub_batches[1].size(), 100U);
}

TEST(FastDecodeTest, PromptsAreAdmittedToDdr) {
  Planned fastdecode("fastdecode", {}, "g4-4xlarge", "llama-2-7b");
  fastdecode.memory(workload);
  Situation now = decoding_in_ddr(4);
  now.waiting = {prompt(10), prompt(11)};
  for (RequestView& request : now.waiting) request.pages = 13;
  const std::optional<Schedule> schedule = fastdecode.policy.policy().schedule(now);
  ASSERT_TRUE(schedule);
  EXPECT_EQ(schedule->admissions, (std::vector<Admission>{{10, Tier::ddr}, {11, Tier::ddr}}));
  EXPECT_EQ(schedule->sub_batches[0][0], (Share{10, 200}));
}

}  // namespace
}  // namespace sluice
