// NEO's iterations (section 3.2) for requests that are made up here: who runs, and with whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

using test::Planned;

constexpr std::int64_t context_tokens = 220;

RequestView decoding(std::int64_t id, Tier kv) {
  return {.id = id, .prompt_tokens_left = 0, .context_tokens = context_tokens, .kv = kv};
}

/// So many with KV in HBM, ids from 0, and others with KV in DDR behind them.
std::vector<RequestView> requests_of(std::int64_t in_hbm, std::int64_t in_ddr) {
  std::vector<RequestView> requests;
  for (std::int64_t id = 0; id < in_hbm + in_ddr; ++id)
    requests.push_back(decoding(id, id < in_hbm ? Tier::hbm : Tier::ddr));
  return requests;
}

class NeoTest : public testing::Test {
 protected:
  std::vector<SubBatchPlan> sub_batches(const std::vector<RequestView>& requests) {
    neo_.memory({.batch = static_cast<std::int64_t>(requests.size()),
                 .input_tokens = context_tokens,
                 .output_tokens = 32});
    return neo_.policy.policy().plan_iteration(requests).sub_batches;
  }

  /// A layer's matrices on the GPU.
  double linear_s(std::int64_t rows) const {
    double sum = 0;
    for (const Sublayer sublayer :
         {Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2})
      sum += neo_.costs.compute_s(Device::gpu, sublayer, BatchShape::decode(rows, 1));
    return sum + 4 * neo_.costs.task_overhead_s(Device::gpu, 1);
  }
  double attention_s(Device device, std::int64_t requests) const {
    if (requests == 0) return 0;
    const BatchShape shape = BatchShape::decode(requests, context_tokens + 1);
    return neo_.costs.compute_s(device, Sublayer::qk, shape) +
           neo_.costs.compute_s(device, Sublayer::sv, shape) +
           2 * neo_.costs.task_overhead_s(device, 1);
  }
  /// Section 3.2's inequalities: `gpu0` and `cpu0` requests in the first sub-batch, `cpu1` in the
  /// other one.
  bool hidden(std::int64_t gpu0, std::int64_t cpu0, std::int64_t cpu1) const {
    const double linear0 = linear_s(gpu0 + cpu0);
    const double linear1 = cpu1 == 0 ? 0 : linear_s(cpu1);
    return attention_s(Device::cpu, cpu1) <= linear0 &&
           attention_s(Device::cpu, cpu0) <= linear1 + attention_s(Device::gpu, gpu0);
  }

  Planned neo_{"neo", {}, "g4-4xlarge", "llama-2-7b"};
};

TEST_F(NeoTest, RequestsInHbmRunTogether) {
  const std::vector<SubBatchPlan> plan = sub_batches(requests_of(8, 0));
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].requests, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(NeoTest, WhatNothingHidesRunsByItself) {
  const std::vector<SubBatchPlan> plan = sub_batches(requests_of(0, 3));
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].requests, (std::vector<std::int64_t>{0, 1, 2}));
}

TEST_F(NeoTest, TheCpusAttentionHidesBehindTheGpusWork) {
  const std::vector<SubBatchPlan> plan = sub_batches(requests_of(8, 60));
  ASSERT_EQ(plan.size(), 2U);
  std::set<std::int64_t> seen;
  for (const SubBatchPlan& sub_batch : plan)
    seen.insert(sub_batch.requests.begin(), sub_batch.requests.end());
  EXPECT_EQ(seen.size(), plan[0].requests.size() + plan[1].requests.size()) << "one runs twice";
  const auto in_hbm = [](std::int64_t id) { return id < 8; };
  EXPECT_EQ(std::count_if(plan[0].requests.begin(), plan[0].requests.end(), in_hbm), 8);
  EXPECT_EQ(std::count_if(plan[1].requests.begin(), plan[1].requests.end(), in_hbm), 0);
  const auto cpu0 = static_cast<std::int64_t>(plan[0].requests.size()) - 8;
  const auto cpu1 = static_cast<std::int64_t>(plan[1].requests.size());
  EXPECT_GT(cpu0, 0);
  EXPECT_TRUE(hidden(8, cpu0, cpu1)) << cpu0 << " and " << cpu1;
  // Some wait, since one more in either would show.
  ASSERT_LT(seen.size(), 68U);
  EXPECT_FALSE(hidden(8, cpu0 + 1, cpu1)) << cpu0 << " and " << cpu1;
  EXPECT_FALSE(hidden(8, cpu0, cpu1 + 1)) << cpu0 << " and " << cpu1;
}

TEST_F(NeoTest, WhoHasWaitedLongestComesFirst) {
  std::vector<RequestView> requests = requests_of(8, 60);
  requests.back().context_tokens = context_tokens - 100;  // it has been left out a hundred times
  const std::vector<SubBatchPlan> plan = sub_batches(requests);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[1].requests.front(), requests.back().id);
}

TEST_F(NeoTest, PromptsRunInTheFirstSubBatch) {
  std::vector<RequestView> requests = requests_of(8, 20);
  requests.push_back({.id = 28, .prompt_tokens_left = 64, .context_tokens = 0, .kv = Tier::hbm});
  const std::vector<SubBatchPlan> plan = sub_batches(requests);
  ASSERT_EQ(plan.size(), 2U);
  const std::vector<std::int64_t>& first = plan[0].requests;
  EXPECT_NE(std::find(first.begin(), first.end(), 28), first.end());
}

TEST_F(NeoTest, AFewInDdrRunBesideTheOthers) {
  // By themselves they would read all weights once more, after the others' last tokens.
  for (const std::int64_t few : {1, 2, 3}) {
    std::size_t run = 0;
    for (const SubBatchPlan& sub_batch : sub_batches(requests_of(8, few)))
      run += sub_batch.requests.size();
    EXPECT_EQ(run, static_cast<std::size_t>(8 + few));
  }
}

TEST_F(NeoTest, WithoutRequestsInHbmTwoHalvesHideEachOther) {
  const std::vector<SubBatchPlan> plan = sub_batches(requests_of(0, 60));
  ASSERT_EQ(plan.size(), 2U);
  const auto half = static_cast<std::int64_t>(plan[0].requests.size());
  EXPECT_EQ(plan[1].requests.size(), plan[0].requests.size());
  EXPECT_TRUE(hidden(0, half, half)) << half;
}

TEST_F(NeoTest, APromptWhoseKvGoesToDdrAlwaysRuns) {
  std::vector<RequestView> requests = requests_of(8, 1);
  for (const std::int64_t id : {9, 10}) {
    requests.push_back({.id = id, .prompt_tokens_left = 64, .context_tokens = 0, .kv = Tier::ddr});
  }
  std::set<std::int64_t> seen;
  for (const SubBatchPlan& sub_batch : sub_batches(requests))
    seen.insert(sub_batch.requests.begin(), sub_batch.requests.end());
  EXPECT_TRUE(seen.contains(9));
}

/// Section 5.5's machines, 1,000 tokens in. `gpu-only` takes no more requests than HBM has room
/// for.
TEST(NeoPlanTest, IsNoSlowerThanTheGpuAlone) {
  for (const char* machine : {"g5-2xlarge", "g5-4xlarge", "g5-8xlarge", "g5-16xlarge"}) {
    test::Planned neo("neo", {}, machine, "llama-3.1-8b");
    test::Planned gpu_only("gpu-only", {}, machine, "llama-3.1-8b");
    for (const std::int64_t output_tokens : {50, 100, 200, 300, 400}) {
      Workload workload = {.batch = 1, .input_tokens = 1000, .output_tokens = output_tokens};
      workload.batch = largest_fitting_batch(gpu_only.policy.policy(), gpu_only.costs, workload);
      const double alone = gpu_only.plan(workload).tokens_per_s();
      EXPECT_GE(neo.plan(workload).tokens_per_s(), alone) << machine << " " << output_tokens;
      // The first ones that HBM has no room for cost nothing, either.
      workload.batch += 2;
      EXPECT_GE(neo.plan(workload).tokens_per_s(), alone) << machine << " " << output_tokens;
    }
  }
}

TEST(NeoPlanTest, KvOfAllRequestsComesBeforePromptsTogether) {
  test::Planned neo("neo", {}, "g5-2xlarge", "llama-3.1-8b");
  // 43 requests' KV leaves room for one prompt's activations, not for eight.
  const Workload workload = {.batch = 43, .input_tokens = 1000, .output_tokens = 300};
  EXPECT_EQ(neo.memory(workload).hbm_requests, 43);
}

}  // namespace
}  // namespace sluice
