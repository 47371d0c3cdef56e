// What a machine costs while its CPU computes by a plan, worked out by hand.
#include "perfmodels/planned_model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/perfmodels/machine.h"

namespace sluice {
namespace {

/// A round of eight threads is 8 of the 9 us that a sublayer takes, of two it is 2 us.
MachineProfile planned_machine() {
  nlohmann::json machine = machine_with_cores();
  machine["cpu"]["task_overhead_us"]["value"] = 9;
  return parse_profile(machine.dump(), "m.json");
}

const ModelDimensions model = {.num_layers = 2,
                               .hidden_size = 64,
                               .embed_size = 64,
                               .num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 16,
                               .ffn_size = 128,
                               .vocab_size = 256,
                               .kv_element_bytes = 2};

CpuPhasePlan groups_of(const std::vector<std::vector<int>>& groups, bool on_nodes = true) {
  CpuPhasePlan plan;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    plan.groups.push_back(
        {.cores = groups[i],
         .numa_node = on_nodes ? std::optional(static_cast<int>(i)) : std::nullopt,
         .share = 1.0 / static_cast<double>(groups.size())});
  }
  return plan;
}
const CpuPhasePlan all_of_each_node = groups_of({{0, 1, 2, 3}, {4, 5, 6, 7}});
const CpuPhasePlan one_of_each_node = groups_of({{0}, {4}});
const CpuPhasePlan all_as_one = groups_of({{0, 1, 2, 3, 4, 5, 6, 7}}, false);

double fc2_s(const CostModel& costs, const BatchShape& shape) {
  return costs.compute_s(Device::cpu, Sublayer::fc2, shape);
}
double fc2_s(const BatchShape& shape, double bytes_per_s, double flop_per_s) {
  const SublayerWork work = sublayer_work(model, Sublayer::fc2, shape);
  return (work.x_bytes + work.y_bytes) / bytes_per_s + work.flops / flop_per_s;
}

TEST(PlannedModelTest, EachPhaseComputesByItsOwnGroups) {
  const PlannedModel costs(planned_machine(), model,
                           {.prefill = all_as_one, .decode = all_of_each_node});
  // A node's four cores share its 100 GB/s: each 25, two beside each other 50 of their 60.
  const BatchShape decode = BatchShape::decode(3, 100);
  EXPECT_DOUBLE_EQ(fc2_s(costs, decode), fc2_s(decode, 200e9, 10e12));
  // In turn, half of what each reads comes at 20 / 4 GB/s: 1 / (0.5 / 25 + 0.5 / 5) GB/s a core.
  const BatchShape prefill = BatchShape::prefill(1, 100);
  EXPECT_DOUBLE_EQ(fc2_s(costs, prefill), fc2_s(prefill, 8e9 / (0.5 / 25 + 0.5 / 5), 10e12));
}

TEST(PlannedModelTest, FewerCoresMultiplyLessAndMeetSooner) {
  const PlannedModel costs(planned_machine(), model,
                           {.prefill = all_of_each_node, .decode = one_of_each_node});
  const BatchShape decode = BatchShape::decode(3, 100);
  EXPECT_DOUBLE_EQ(fc2_s(costs, decode), fc2_s(decode, 80e9, 2.5e12));
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::cpu, 2), 2 * 3e-6) << "9 us with a round of 8";
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::gpu, 1), 10e-6) << "the GPU's stays";
}

TEST(PlannedModelTest, KvIsReadNearbyWhereEachGroupHasHeads) {
  const BatchShape decode = BatchShape::decode(3, 100);
  const SublayerWork qk = sublayer_work(model, Sublayer::qk, decode);
  const auto qk_s = [&](const CpuPhasePlan& plan) {
    return PlannedModel(planned_machine(), model, {.prefill = plan, .decode = plan})
        .compute_s(Device::cpu, Sublayer::qk, decode);
  };
  const auto seconds_at = [&](double bytes_per_s) {
    return (qk.x_bytes + qk.y_bytes) / bytes_per_s + qk.flops / 5e12;
  };
  // Of 100 GB/s of memory attention gets 50; two groups with a head each have 200 together.
  EXPECT_DOUBLE_EQ(qk_s(all_of_each_node), seconds_at(100e9));
  // Four groups and two heads: half of what each core reads comes at 5 GB/s.
  CpuPhasePlan halves = groups_of({{0, 1}, {4, 5}, {2, 3}, {6, 7}});
  for (std::size_t i = 0; i < 4; ++i) halves.groups[i].numa_node = static_cast<int>(i % 2);
  EXPECT_DOUBLE_EQ(qk_s(halves), seconds_at(50e9 * (8 / (0.5 / 25 + 0.5 / 5)) / 100));
}

TEST(PlannedModelTest, TheSlowestGroupForItsShareCounts) {
  CpuPhasePlan uneven = all_of_each_node;
  uneven.groups[0].share = 0.25;
  uneven.groups[1].share = 0.75;
  const PlannedModel costs(planned_machine(), model, {.prefill = uneven, .decode = uneven});
  const BatchShape decode = BatchShape::decode(1, 1);
  EXPECT_DOUBLE_EQ(fc2_s(costs, decode), fc2_s(decode, 100e9 / 0.75, 10e12 * 4 / 0.75 / 8));
}

TEST(PlannedModelTest, ProfilesWithoutCoresAreRefused) {
  const MachineProfile profile = parse_profile(round_machine().dump(), "m.json");
  EXPECT_THROW(profile_by_plan(profile, all_as_one, 8), Error);
}

}  // namespace
}  // namespace sluice
