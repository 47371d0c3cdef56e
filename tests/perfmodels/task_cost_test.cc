#include "perfmodels/task_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "perfmodels/measured_model.h"
#include "tests/perfmodels/calibrations.h"
#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

MeasuredModel costs_of_tests() { return {round_calibration(smooth_attention_s), round_model()}; }

TaskTag decode_tag(Sublayer first, Sublayer last) {
  TaskTag tag;
  tag.layer = 1;
  tag.sublayer = first;
  tag.last_sublayer = last;
  tag.phase = Phase::decode;
  tag.num_tokens = tag.num_sequences = tag.num_logit_rows = 4;
  tag.context_tokens = 4 * 128;
  return tag;
}

TEST(TaskCostTest, ShapeIsMeansRoundedUp) {
  TaskTag tag;
  tag.num_tokens = 10;
  tag.num_sequences = 3;
  tag.context_tokens = 100;
  EXPECT_EQ(batch_shape(tag), (BatchShape{Phase::prefill, 3, 4, 34}));
  EXPECT_EQ(batch_shape(TaskTag{}), (BatchShape{Phase::prefill, 1, 1, 1}));
}

TEST(TaskCostTest, AStageIsTheSumOfItsSublayers) {
  const MeasuredModel costs = costs_of_tests();
  const double attention_s = smooth_attention_s(BatchShape::decode(4, 128));
  const auto seconds = [&](Sublayer first, Sublayer last) {
    return task_seconds(costs, decode_tag(first, last), Device::cpu);
  };
  EXPECT_NEAR(seconds(Sublayer::fc1, Sublayer::fc1), 4e-3, 1e-12);
  EXPECT_NEAR(seconds(Sublayer::fc1, Sublayer::fc2), 8e-3, 1e-12);
  EXPECT_NEAR(seconds(Sublayer::qkv, Sublayer::fc2), 16e-3 + attention_s, 1e-12);
  EXPECT_NEAR(seconds(Sublayer::attention, Sublayer::attention), attention_s, 1e-12);
  EXPECT_NEAR(seconds(Sublayer::qk, Sublayer::qk), attention_s / 2, 1e-12);
  EXPECT_NEAR(seconds(Sublayer::lm_head, Sublayer::lm_head), 8e-3, 1e-12);
}

TEST(TaskCostTest, SeveralLayersAreSummedEachWhereItsOperandsLive) {
  const test::ToyCosts costs(3);
  MemoryPlan memory;
  memory.layers.assign(3, LayerHomes::all(Tier::ddr, Tier::ddr));
  memory.layers[2] = LayerHomes::all(Tier::cxl, Tier::cxl);
  TaskTag tag = decode_tag(Sublayer::qkv, Sublayer::fc2);
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 21);
  tag.num_layers = 2;
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu), 42);
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 21 + 3 * 21);
}

/// In chunks of 3, 3 and 2 of 8 experts: together what one task takes.
TEST(TaskCostTest, TasksWithSomeExpertsShareWhatAllTake) {
  test::ToyCosts costs;
  costs.model().num_experts = 8;
  costs.model().experts_per_token = 2;
  TaskTag tag = decode_tag(Sublayer::fc1, Sublayer::fc2);
  const double whole_s = task_seconds(costs, tag, Device::gpu);
  EXPECT_DOUBLE_EQ(whole_s, 0.5 + 0.6);
  double sum_s = 0;
  for (const std::int64_t num_experts : {3, 3, 2}) {
    tag.num_experts = num_experts;
    sum_s += task_seconds(costs, tag, Device::gpu);
  }
  EXPECT_NEAR(sum_s, whole_s, 1e-12);
  const std::vector<SublayerSeconds> parts = stage_parts(costs, tag, Device::gpu);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_NEAR(parts[0].seconds, 0.25 * 0.5, 1e-12);
}

TEST(TaskCostTest, WhatNoModelKnowsCostsATask) {
  const MeasuredModel costs = costs_of_tests();
  for (const Sublayer sublayer : {Sublayer::embedding, Sublayer::sampling})
    EXPECT_DOUBLE_EQ(task_seconds(costs, decode_tag(sublayer, sublayer), Device::cpu), 2.5e-6);
}

TEST(TaskCostTest, StoringKvTakesWhatTheModelSaysOfItsTier) {
  test::ToyCosts costs(2);
  costs.kv_store_s = {0.25, 1};
  const TaskTag tag = decode_tag(Sublayer::kv_store, Sublayer::kv_store);
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu), 1);
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::gpu), 0.25);
  MemoryPlan memory;
  memory.layers.assign(2, LayerHomes::all(Tier::ddr, Tier::cxl));
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 3);
}

TEST(TaskCostTest, StoringKvOnADiskTakesWhatTheDiskTakesBesides) {
  test::ToyCosts costs(2);
  costs.kv_store_s = {0, 1};
  MemoryPlan memory;
  memory.layers.assign(2, LayerHomes::all(Tier::ddr, Tier::ddr));
  memory.layers[1].kv = Tier::disk;
  TaskTag tag = decode_tag(Sublayer::kv_store, Sublayer::kv_store);
  // 4 sequences: 15 tokens of 40 bytes read at 1 byte/s, 16 written at half of that.
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 1 + 4 * 40 * (15 + 2 * 16));
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu), 1);
  tag.phase = Phase::prefill;
  tag.num_tokens = 4 * 20;  // two pages each
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 1 + 4 * 40 * 2 * 32);
  tag.layer = 0;
  EXPECT_DOUBLE_EQ(task_seconds(costs, tag, Device::cpu, &memory), 1);
}

/// Answers nonsense.
class BrokenCosts : public CostModel {
 public:
  explicit BrokenCosts(double answer) : answer_(answer) {}
  const ModelDimensions& model() const override { return model_; }
  bool has(Device) const override { return true; }
  std::uint64_t capacity_bytes(Tier) const override { return 0; }
  double compute_s(Device, Sublayer, const BatchShape&, Tier) const override {
    if (answer_ < 0) throw Error("no answer");
    return answer_;
  }
  double lm_head_s(Device, std::int64_t) const override { return answer_; }
  double transfer_s(Tier, Tier, double) const override { return answer_; }
  double task_overhead_s(Device, int) const override { return answer_; }

 private:
  ModelDimensions model_ = round_model();
  double answer_;
};

TEST(TaskCostTest, IsNeverZeroInfiniteOrNan) {
  for (const double answer : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const BrokenCosts costs(answer);
    for (const Sublayer sublayer : {Sublayer::embedding, Sublayer::fc1, Sublayer::lm_head}) {
      const double seconds = task_seconds(costs, decode_tag(sublayer, sublayer), Device::cpu);
      EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << answer;
    }
  }
}

TEST(TaskCostTest, FootprintsAreBucketed) {
  TaskTag tag = decode_tag(Sublayer::qkv, Sublayer::fc2);
  const std::uint32_t footprint = task_footprint(tag);
  ++tag.context_tokens;  // the next iteration
  ++tag.layer;
  EXPECT_EQ(task_footprint(tag), footprint);
  std::set<std::uint32_t> different = {footprint};
  tag.context_tokens *= 2;
  different.insert(task_footprint(tag));
  tag.num_tokens *= 2;
  different.insert(task_footprint(tag));
  tag.phase = Phase::prefill;
  different.insert(task_footprint(tag));
  tag.device = Device::gpu;
  different.insert(task_footprint(tag));
  tag.last_sublayer = Sublayer::fc1;
  different.insert(task_footprint(tag));
  tag.num_layers = 8;
  different.insert(task_footprint(tag));
  EXPECT_EQ(different.size(), 7U);
}

}  // namespace
}  // namespace sluice
