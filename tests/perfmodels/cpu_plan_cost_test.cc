#include "perfmodels/cpu_plan_cost.h"

#include <gtest/gtest.h>

#include "perfmodels/cpu_plan_search.h"

namespace sluice {
namespace {

/// Two nodes of four cores. A node's memory gives 40, 80, 100 and 90 GB/s to so many cores; other
/// nodes' 20 GB/s to all cores of one.
Topology machine() { return Topology::described_by("pack:2 numa:1 core:4 pu:1"); }
CoreRates rates() {
  return {.node_bandwidth = Curve({{1, 40e9}, {2, 80e9}, {3, 100e9}, {4, 90e9}}),
          .remote_bandwidth = 20e9,
          .round_s = Curve({{1, 1e-6}, {8, 8e-6}}),
          .core_flop_per_s = 50e9};
}

const PlanWork reading = {.products = {{.bytes = 10e9}}};

CpuPhasePlan plan_of(std::vector<CpuGroup> groups) { return {.groups = std::move(groups)}; }

TEST(CpuPlanCostTest, GroupsReadTheirNode) {
  const CpuPlanCost cost(machine(), rates(), reading);
  const CpuPhasePlan both = static_plan({0, 1, 2, 3, 4, 5, 6, 7}, machine()).decode;
  EXPECT_DOUBLE_EQ(cost.bandwidth(both, 0), 90e9);
  EXPECT_DOUBLE_EQ(cost.bandwidth(both, 1), 90e9);
  EXPECT_NEAR(cost.seconds(both), 5e9 / 90e9, 1e-5);
  const CpuPhasePlan three = static_plan({0, 1, 2, 4, 5, 6}, machine()).decode;
  EXPECT_NEAR(cost.seconds(three), 5e9 / 100e9, 1e-5) << "one core of each node left out";
}

TEST(CpuPlanCostTest, WhatIsElsewhereComesByTheSlowerWay) {
  const CpuPlanCost cost(machine(), rates(), reading);
  // Half near at 90 / 4 GB/s a core, half far at 20 / 4 GB/s.
  const double core = 1 / (0.5 / 22.5e9 + 0.5 / 5e9);
  const CpuPhasePlan mixed = interleaved_plan({0, 1, 2, 3, 4, 5, 6, 7}).decode;
  EXPECT_NEAR(cost.bandwidth(mixed, 0), 8 * core, 1);
  const CpuPhasePlan swapped = plan_of({{.cores = {0, 1, 2, 3}, .numa_node = 1, .share = 0.5},
                                        {.cores = {4, 5, 6, 7}, .numa_node = 0, .share = 0.5}});
  EXPECT_DOUBLE_EQ(cost.bandwidth(swapped, 0), 20e9);
}

TEST(CpuPlanCostTest, TheSlowestGroupAndTheRoundsSetTheTime) {
  const CpuPlanCost cost(machine(), rates(),
                         {.products = {{.bytes = 10e9, .flops = 80e9}}, .rounds = 1000});
  const CpuPhasePlan uneven = plan_of({{.cores = {0, 1}, .numa_node = 0, .share = 0.6},
                                       {.cores = {4, 5}, .numa_node = 1, .share = 0.4}});
  // 48 GFLOP by two cores of 50 GFLOP/s each; four threads meet a thousand times.
  EXPECT_NEAR(cost.seconds(uneven), 0.48 + 1000 * 4e-6, 1e-9);
}

/// One stage reads 10 GB at 90 GB/s a node, the next one computes 80 GFLOP at 8 x 50 GFLOP/s.
TEST(CpuPlanCostTest, StagesFollowEachOther) {
  const CpuPhasePlan both = static_plan({0, 1, 2, 3, 4, 5, 6, 7}, machine()).decode;
  const PlanWork::Stage read = {.bytes = 10e9, .flops = 1e9};
  const PlanWork::Stage compute = {.bytes = 1e6, .flops = 80e9};
  const CpuPlanCost cost(machine(), rates(), {.products = {read, compute}});
  EXPECT_NEAR(cost.seconds(both), 10e9 / 180e9 + 80e9 / 400e9, 1e-9);
  CoreRates adding = rates();
  adding.combine = Combine::sum;
  EXPECT_NEAR(CpuPlanCost(machine(), adding, {.products = {read, compute}}).seconds(both),
              10.001e9 / 180e9 + 81e9 / 400e9, 1e-9);
}

/// Two KV heads lie in two groups' memory. Of one head there is KV on both nodes.
TEST(CpuPlanCostTest, AttentionHasRatesOfItsOwn) {
  const CpuPhasePlan both = static_plan({0, 1, 2, 3, 4, 5, 6, 7}, machine()).decode;
  CoreRates halved = rates();
  halved.attention_bandwidth_share = 0.5;
  halved.core_attention_flop_per_s = 10e9;
  const auto seconds = [&](const PlanWork& work) {
    return CpuPlanCost(machine(), halved, work).seconds(both);
  };
  EXPECT_NEAR(seconds({.attention = {.bytes = 9e9, .flops = 1}, .num_kv_heads = 2}), 0.1, 1e-9);
  // Half near at 90 / 4 GB/s a core, half far at 20 / 4 GB/s.
  const double all_cores = 8 / (0.5 / 22.5e9 + 0.5 / 5e9);
  EXPECT_NEAR(seconds({.attention = {.bytes = 9e9, .flops = 1}, .num_kv_heads = 1}),
              9e9 / (all_cores / 2), 1e-9);
  EXPECT_NEAR(seconds({.attention = {.bytes = 1, .flops = 8e9}}), 0.1, 1e-9);
}

/// A core is named by any of its hardware threads.
TEST(CpuPlanCostTest, AnyHardwareThreadStandsForItsCore) {
  const Topology two_threads = Topology::described_by("pack:2 numa:1 core:4 pu:2");
  const CpuPlanCost cost(two_threads, rates(), reading);
  const auto on = [](std::vector<int> cores) {
    return plan_of({{.cores = std::move(cores), .numa_node = 0}});
  };
  EXPECT_DOUBLE_EQ(cost.seconds(on({1, 3, 4})), cost.seconds(on({0, 2, 4})));
}

TEST(CpuPlanCostTest, CoresThatShareSomethingLimitEachOther) {
  CoreRates shared = rates();
  shared.contention.push_back({.cores = 2, .bandwidth = Curve({{1, 40e9}, {2, 30e9}})});
  const CpuPlanCost cost(machine(), shared, reading);
  const auto node_0 = [](std::vector<int> cores) {
    return plan_of({{.cores = std::move(cores), .numa_node = 0}});
  };
  EXPECT_DOUBLE_EQ(cost.bandwidth(node_0({0, 1}), 0), 30e9);
  EXPECT_DOUBLE_EQ(cost.bandwidth(node_0({0, 2}), 0), 80e9);
  EXPECT_DOUBLE_EQ(cost.bandwidth(node_0({0, 1, 2}), 0), 30e9 + 100e9 / 3);
}

// As in section 3.3, where one core of each four, which share a tag of the last-level cache, is
// left out. The limit is assumed: this tries the search.
TEST(CpuPlanCostTest, SearchLeavesOutOneCoreOfEachFour) {
  const Topology small_kunpeng = Topology::described_by("pack:2 numa:2 l3:1 core:8 pu:1");
  const CpuPlanCost cost(
      small_kunpeng,
      {.node_bandwidth = Curve({{1, 8e9}, {8, 47e9}}),
       .remote_bandwidth = 20e9,
       .round_s = Curve({{1, 1e-6}, {32, 4e-6}}),
       .core_flop_per_s = 20e9,
       .contention = {{.cores = 4, .bandwidth = Curve({{1, 6e9}, {3, 15e9}, {4, 10e9}})}}},
      {.products = {{.bytes = 2.7e9}}, .rounds = 170});
  const CpuPhasePlan best = search_plans(small_kunpeng, cost).best.front().plan;
  EXPECT_EQ(best.num_cores(), 24);
  EXPECT_EQ(best.groups.size() % 4, 0U) << "each group on one node";
}

}  // namespace
}  // namespace sluice
