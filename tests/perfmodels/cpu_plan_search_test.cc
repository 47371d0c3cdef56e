#include "perfmodels/cpu_plan_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace sluice {
namespace {

/// Seconds to read one gigabyte, shared out as a plan says. Cores that share something, `of` them
/// with numbers in a row, get `together` GB/s of it at most while all compute, and `fewer` each
/// while some sleep; a group costs `round_s` more for each of its cores.
struct Contention {
  int of = 4;
  double together = 8;
  double each = 3;
  double round_s = 1e-4;

  double operator()(const CpuPhasePlan& plan) const {
    std::map<int, int> busy;
    for (const CpuGroup& group : plan.groups) {
      for (const int core : group.cores) ++busy[core / of];
    }
    double slowest = 0;
    for (const CpuGroup& group : plan.groups) {
      double rate = 0;
      for (const int core : group.cores) {
        const int sharing = busy.at(core / of);
        rate += sharing == of ? together / of : each;
      }
      slowest =
          std::max(slowest, group.share / rate + round_s * static_cast<double>(group.cores.size()));
    }
    return slowest;
  }
};

// Section 3.3: on a Kunpeng 920 each four cores share a tag of the last-level cache, which no level
// of the system's shows, and one core less of each four is faster.
TEST(CpuPlanSearchTest, FindsAHiddenLimitOfFourCores) {
  const Topology topology = Topology::described_by("pack:4 numa:2 l3:1 core:24 pu:1");
  const PlanSearch search = search_plans(topology, Contention{});
  ASSERT_EQ(search.best.size(), 10U);
  const CpuPhasePlan& plan = search.best.front().plan;
  EXPECT_EQ(plan.num_cores(), 144);
  EXPECT_EQ(plan.left_out.size(), 48U);
  std::map<int, int> left_out;
  for (const int core : plan.left_out) ++left_out[core / 4];
  EXPECT_EQ(left_out.size(), 48U) << "one of each four";
  EXPECT_EQ(plan.predicted_s, search.best.front().seconds);
  for (std::size_t i = 1; i < search.best.size(); ++i)
    EXPECT_LE(search.best[i - 1].seconds, search.best[i].seconds);
  double shares = 0;
  for (const CpuGroup& group : plan.groups) shares += group.share;
  EXPECT_NEAR(shares, 1, 1e-9);
}

TEST(CpuPlanSearchTest, LeavesNoCoreOutWhereEachHelps) {
  const Topology topology = Topology::described_by("pack:2 numa:1 l3:2 core:4 pu:1");
  const Contention harmless{.together = 12, .round_s = 0};
  const PlanSearch search = search_plans(topology, harmless);
  EXPECT_TRUE(search.best.front().plan.left_out.empty());
  EXPECT_EQ(search.best.front().plan.groups.size(), 1U) << "of equals the one with fewer groups";
}

TEST(CpuPlanSearchTest, FullPlansHaveAllCoresAndGroupsTheirNodes) {
  const Topology topology = Topology::described_by("pack:2 numa:1 l3:2 core:4 pu:2");
  std::set<std::size_t> counts;
  const PlanSearch search = search_full_plans(
      topology, [](const CpuPhasePlan& plan) { return static_cast<double>(plan.groups.size()); },
      {.top = 1000, .most_groups = 8});
  for (const FoundPlan& found : search.best) {
    EXPECT_TRUE(found.plan.left_out.empty());
    EXPECT_EQ(found.plan.num_cores(), 16);
    counts.insert(found.plan.groups.size());
    if (found.plan.groups.size() == 1) {
      EXPECT_EQ(found.plan.groups[0].numa_node, std::nullopt);
    } else {
      EXPECT_NE(found.plan.groups[0].numa_node, std::nullopt);
    }
  }
  EXPECT_EQ(counts, (std::set<std::size_t>{1, 2, 4, 8}));
}

/// Two trees may have the same cores in another order.
TEST(CpuPlanSearchTest, FindsNoPlanTwice) {
  for (const char* text : {"pack:2 numa:1 core:4 pu:2", "pack:1 numa:1 l3:2 core:6 pu:1"}) {
    const PlanSearch search =
        search_plans(Topology::described_by(text), Contention{}, {.top = 100000});
    std::set<std::set<std::set<int>>> seen;
    for (const FoundPlan& found : search.best) {
      std::set<std::set<int>> groups;
      for (const CpuGroup& group : found.plan.groups)
        groups.emplace(group.cores.begin(), group.cores.end());
      EXPECT_TRUE(seen.insert(groups).second) << text;
    }
    EXPECT_GT(seen.size(), 10U);
  }
}

/// The fastest of all sets of cores in one group or in two halves.
double best_of_all(int cores, const PlanScore& score) {
  double best = 1e9;
  for (unsigned set = 1; set < 1U << cores; ++set) {
    CpuGroup all;
    for (int core = 0; core < cores; ++core) {
      if ((set >> core & 1U) != 0) all.cores.push_back(core);
    }
    best = std::min(best, score({.groups = {all}}));
    const auto half = static_cast<std::ptrdiff_t>(all.cores.size() / 2);
    if (half * 2 != std::ssize(all.cores)) continue;
    best = std::min(
        best,
        score({.groups = {{.cores = {all.cores.begin(), all.cores.begin() + half}, .share = 0.5},
                          {.cores = {all.cores.begin() + half, all.cores.end()}, .share = 0.5}}}));
  }
  return best;
}

// What cores share lies within what the system shows, as it does where it is made of.
TEST(CpuPlanSearchTest, IsNearTheBestOfAllSetsOfCores) {
  const std::map<const char*, std::vector<Contention>> machines = {
      {"pack:1 numa:1 core:12 pu:1",
       {{},
        {.of = 2, .together = 2.5},
        {.of = 3, .together = 4},
        {.of = 6, .together = 9},
        {.of = 12, .together = 20},
        {.round_s = 5e-3}}},
      {"pack:2 numa:1 l3:1 core:6 pu:1",
       {{.of = 2, .together = 2.5}, {.of = 3, .together = 4}, {.of = 6, .together = 9}}},
      {"pack:1 numa:1 l3:3 core:4 pu:1", {{}, {.of = 2, .together = 2.5}, {.together = 11}}}};
  for (const auto& [text, limits] : machines) {
    const Topology topology = Topology::described_by(text);
    for (const Contention& limit : limits) {
      EXPECT_LE(search_plans(topology, limit).best.front().seconds, 1.02 * best_of_all(12, limit))
          << text << ", limits of " << limit.of;
    }
  }
}

TEST(CpuPlanSearchTest, LosesPatience) {
  const Topology topology = Topology::described_by("pack:2 numa:2 l3:1 core:12 pu:1");
  const PlanSearch all = search_plans(topology, Contention{});
  const PlanSearch some = search_plans(topology, Contention{}, {.patience = 20});
  EXPECT_LT(some.num_plans, all.num_plans);
  EXPECT_GE(some.best.front().seconds, all.best.front().seconds);
}

}  // namespace
}  // namespace sluice
