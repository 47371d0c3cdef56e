#include "engine/measure/tune.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "engine/console/core_list.h"
#include "engine/machine/compute.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::expect_error;

const Topology& four_cores() {
  static const Topology topology = Topology::described_by("numa:2 core:2 pu:1");
  return topology;
}

CpuPhasePlan groups_of(const std::vector<std::vector<int>>& groups) {
  CpuPhasePlan plan;
  for (const std::vector<int>& cores : groups)
    plan.groups.push_back({.cores = cores, .share = 1.0 / static_cast<double>(groups.size())});
  return plan;
}

/// Of decode; prefill has a single plan.
CpuTuning tuning_of(const std::vector<CpuPhasePlan>& decode, int rounds) {
  CpuTuning tuning{.model = "a model", .rounds = rounds};
  tuning.prefill = {.rows = 512, .context = 0, .plans = {{.plan = groups_of({{0, 1, 2, 3}})}}};
  tuning.decode.context = 128;
  for (const CpuPhasePlan& plan : decode) tuning.decode.plans.push_back({.plan = plan});
  return tuning;
}

/// Each decode plan takes the seconds that are said of its number of cores.
double seconds_by_cores(TunedPhase phase, const CpuPhasePlan& plan,
                        const std::map<int, double>& of_cores) {
  return phase == TunedPhase::prefill ? 1 : of_cores.at(plan.num_cores());
}

TEST(TuneTest, FastestMedianIsChosen) {
  CpuTuning tuning =
      tuning_of({groups_of({{0, 1, 2, 3}}), groups_of({{0, 1, 2}}), groups_of({{0}})}, 3);
  EXPECT_THROW(tuning.plan(), Error) << "nothing is measured";
  run_tuning(tuning, {.measure = [](TunedPhase phase, const CpuPhasePlan& plan) {
               return seconds_by_cores(phase, plan, {{4, 1.02}, {3, 1}, {1, 1.1}});
             }});
  ASSERT_TRUE(tuning.is_complete());
  const CpuPlan plan = tuning.plan();
  EXPECT_EQ(plan.decode.groups, groups_of({{0, 1, 2}}).groups);
  EXPECT_EQ(plan.decode.measured_s, 1);
  EXPECT_EQ(plan.prefill.measured_s, 1);
}

TEST(TuneTest, OfPlansThatMeasureAlikeTheSimplestIsChosen) {
  const CpuPhasePlan one_group = groups_of({{0, 1, 2, 3}});
  const CpuPhasePlan fewer_cores = groups_of({{0, 1, 2}});
  const CpuPhasePlan two_groups = groups_of({{0}, {1}});
  CpuTuning tuning = tuning_of({two_groups, one_group, fewer_cores}, 2);
  run_tuning(tuning, {.measure = [](TunedPhase phase, const CpuPhasePlan& plan) {
               return seconds_by_cores(phase, plan, {{4, 1.008}, {3, 1.009}, {2, 1}});
             }});
  EXPECT_EQ(tuning.plan().decode.groups, fewer_cores.groups) << "one group, and fewer cores";
  EXPECT_EQ(tuning.plan().decode.measured_s, 1.009);
}

/// Rounds drift by more than plans differ.
TEST(TuneTest, WhatIsFasterInMostRoundsIsChosen) {
  CpuTuning tuning = tuning_of({groups_of({{0, 1}}), groups_of({{0}, {1}})}, 5);
  tuning.prefill.plans[0].samples_s = {1, 1, 1, 1, 1};
  std::vector<double>& simple = tuning.decode.plans[0].samples_s;
  std::vector<double>& other = tuning.decode.plans[1].samples_s;
  simple = {1, 1.3, 0.9, 1.2, 1.1};
  other = simple;
  for (double& seconds : other) seconds /= 1.03;
  EXPECT_EQ(tuning.plan().decode.groups.size(), 2U);
  other = {0.97, 1.34, 0.88, 1.16, 1.14};  // by 3 % now this one, now that
  EXPECT_EQ(tuning.plan().decode.groups.size(), 1U);
  std::swap(simple, other);
  EXPECT_EQ(tuning.plan().decode.groups.size(), 1U);
}

TEST(TuneTest, PlansThatCannotWinAreGivenUp) {
  CpuTuning tuning = tuning_of({groups_of({{0, 1}}), groups_of({{0}})}, 5);
  std::map<int, int> measured;
  run_tuning(tuning, {.measure = [&](TunedPhase phase, const CpuPhasePlan& plan) {
               if (phase == TunedPhase::decode) ++measured[plan.num_cores()];
               return seconds_by_cores(phase, plan, {{2, 1}, {1, 1.2}});
             }});
  EXPECT_EQ(measured[2], 5);
  EXPECT_EQ(measured[1], 2);
  EXPECT_TRUE(tuning.decode.is_out(tuning.decode.plans[1]));
  EXPECT_TRUE(tuning.is_complete());
}

TEST(TuneTest, EachRoundTurnsTheOrder) {
  CpuTuning tuning = tuning_of({groups_of({{0}}), groups_of({{0, 1}}), groups_of({{0, 1, 2}})}, 2);
  std::vector<int> order;
  int saved = 0;
  run_tuning(tuning, {.measure =
                          [&](TunedPhase phase, const CpuPhasePlan& plan) {
                            if (phase == TunedPhase::decode) order.push_back(plan.num_cores());
                            return 1.0;
                          },
                      .save = [&] { ++saved; }});
  EXPECT_EQ(order, (std::vector{1, 2, 3, 3, 2, 1}));
  EXPECT_EQ(saved, 4) << "after each round of each phase";
}

TEST(TuneTest, WhatWasInterruptedGoesOnAndGivesTheSame) {
  // What each of a plan's samples takes, however they come about.
  const auto meter = [](std::map<int, int>& taken, int most) {
    return [&taken, most, all = 0](TunedPhase phase, const CpuPhasePlan& plan) mutable {
      if (++all > most) throw Error("killed");
      if (phase == TunedPhase::prefill) return 2.0;
      const int sample = taken[plan.num_cores()]++;
      return 1 + 0.05 * plan.num_cores() + 0.01 * sample;
    };
  };
  const std::vector<CpuPhasePlan> plans = {groups_of({{0}}), groups_of({{0, 1}}),
                                           groups_of({{0, 1, 2}})};
  std::map<int, int> taken;
  CpuTuning whole = tuning_of(plans, 4);
  run_tuning(whole, {.measure = meter(taken, 1000)});
  for (const int most : {1, 5, 9, 12}) {
    std::map<int, int> of_both;
    CpuTuning cut = tuning_of(plans, 4);
    json stored = as_json(cut, four_cores());
    const auto save = [&] { stored = as_json(cut, four_cores()); };
    EXPECT_THROW(run_tuning(cut, {.measure = meter(of_both, most), .save = save}), Error);
    CpuTuning resumed = read_cpu_tuning(stored, "stored", four_cores());
    EXPECT_FALSE(resumed.is_complete());
    EXPECT_FALSE(stored.contains("cpu_plan"));
    of_both.clear();
    for (const TunedPlan& plan : resumed.decode.plans)
      of_both[plan.plan.num_cores()] = static_cast<int>(plan.samples_s.size());
    run_tuning(resumed, {.measure = meter(of_both, 1000)});
    EXPECT_EQ(as_json(resumed, four_cores()), as_json(whole, four_cores())) << most;
  }
}

TEST(TuneTest, ItsFileIsAPlan) {
  CpuTuning tuning = tuning_of({groups_of({{0, 1}, {2, 3}})}, 1);
  run_tuning(tuning, {.measure = [](TunedPhase, const CpuPhasePlan&) { return 0.5; }});
  const json stored = as_json(tuning, four_cores());
  EXPECT_EQ(read_cpu_plan(stored, "stored", four_cores()), tuning.plan());
  EXPECT_EQ(as_json(read_cpu_tuning(stored, "stored", four_cores()), four_cores()), stored);
}

TEST(TuneTest, ThePlanThatWasFoundHoldsUntilThereIsAnother) {
  CpuTuning tuning = tuning_of({groups_of({{0, 1}, {2, 3}}), groups_of({{0, 1, 2}})}, 2);
  EXPECT_FALSE(as_json(tuning, four_cores()).contains("cpu_plan"));
  tuning.previous = interleaved_plan({0, 1, 2, 3});
  EXPECT_EQ(read_cpu_plan(as_json(tuning, four_cores()), "the file", four_cores()),
            *tuning.previous);
  run_tuning(tuning, {.measure = [](TunedPhase, const CpuPhasePlan&) { return 1.0; }});
  EXPECT_EQ(read_cpu_plan(as_json(tuning, four_cores()), "the file", four_cores()).decode.groups,
            groups_of({{0, 1, 2}}).groups);
  tuning.previous.reset();
  tuning.rounds = 3;
  expect_error([&] { read_cpu_plan(as_json(tuning, four_cores()), "the file", four_cores()); },
               {"the file", "none is chosen yet"});
}

TEST(TuneTest, DamagedFilesAreRefusedInOneLine) {
  CpuTuning tuning = tuning_of({groups_of({{0, 1}})}, 1);
  const json good = as_json(tuning, four_cores());
  const auto refused = [&](const std::string& pointer, const json& value,
                           std::initializer_list<std::string_view> parts) {
    json bad = good;
    bad[json::json_pointer(pointer)] = value;
    expect_error([&] { read_cpu_tuning(bad, "tuned.json", four_cores()); }, parts);
  };
  refused("/topology", "machine(0)", {"tuned.json", "another machine"});
  refused("/model", 3, {"tuned.json", "\"model\" is 3"});
  refused("/rounds", 0, {"\"rounds\" is 0"});
  refused("/decode", json::array(), {"decode is []"});
  refused("/decode/plans", json::array(), {"decode.plans is []", "a list of plans"});
  refused("/decode/plans/0/samples_s", json::array({-1}), {"decode.samples_s has -1"});
  refused("/decode/plans/0/groups/0/cores", json::array({9}), {"decode.groups[0]", "core 9"});
  refused("/prefill/rows", "many", {"\"rows\" is \"many\""});
  json without = good;
  without.erase("prefill");
  expect_error([&] { read_cpu_tuning(without, "tuned.json", four_cores()); },
               {"tuned.json", "\"prefill\" is missing"});
  expect_error([&] { read_cpu_tuning(json(3), "tuned.json", four_cores()); },
               {"3, expected an object"});
}

TEST(CpuUseTest, APlansTextTellsItFromOthers) {
  const std::vector<int> cores = {0, 1, 2, 3};
  EXPECT_EQ((CpuUse{.cores = cores}).cut_text(2), "");
  EXPECT_EQ((CpuUse{.cores = cores, .plan = interleaved_plan(cores)}).cut_text(2), "");
  CpuPlan plan = static_plan(cores, four_cores());
  plan.prefill = interleaved_plan(cores).prefill;
  EXPECT_EQ((CpuUse{.cores = cores, .plan = plan}).cut_text(2),
            "prefill 0-3; decode 0-1@0 0.5 | 2-3@1 0.5");
  plan.decode = {.groups = {{.cores = cores, .numa_node = 0}}};
  EXPECT_EQ((CpuUse{.cores = cores, .plan = plan}).cut_text(2), "prefill 0-3; decode 0-3@0");
  EXPECT_EQ((CpuUse{.cores = cores, .plan = plan}).cut_text(1), "") << "there is no other node";
  plan.decode = {.groups = {{.cores = {0, 1, 2}}}, .left_out = {3}};
  EXPECT_EQ((CpuUse{.cores = cores, .plan = plan}).cut_text(2), "prefill 0-3; decode 0-2");
}

TEST(CoreListTest, RunsHaveAStep) {
  EXPECT_EQ(cores_text({}), "");
  EXPECT_EQ(cores_text({3}), "3");
  EXPECT_EQ(cores_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(cores_text({0, 2, 4, 6}), "0-6 by 2");
  EXPECT_EQ(cores_text({0, 2, 3, 4}), "0,2-4");
  EXPECT_EQ(cores_text({0, 5}), "0,5");
  EXPECT_EQ(cores_text({0, 2, 4, 7, 10, 13}), "0-4 by 2,7-13 by 3");
}

}  // namespace
}  // namespace sluice
