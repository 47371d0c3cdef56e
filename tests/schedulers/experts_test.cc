// The policy `experts`, by the cost model's own estimates.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "engine/plan/planner.h"
#include "engine/plan/policy_choice.h"
#include "perfmodels/analytic_model.h"
#include "perfmodels/hot_experts.h"
#include "perfmodels/routing_file.h"
#include "perfmodels/timeline.h"
#include "schedulers/loader.h"
#include "tests/perfmodels/machine.h"
#include "tests/schedulers/planning.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Options = std::map<std::string, std::string>;

/// Four layers of 16 experts, 200 MB a layer; attention, head and two layers on their way take
/// about 0.6 GiB.
ModelDimensions small_mixture(double exponent = 1) {
  ModelDimensions model;
  model.num_layers = 4;
  model.hidden_size = model.embed_size = 2048;
  model.num_heads = 16;
  model.num_kv_heads = 4;
  model.head_dim = 128;
  model.ffn_size = 1024;
  model.vocab_size = 32000;
  model.num_experts = 16;
  model.experts_per_token = 2;
  model.routing = Routing::zipf(exponent, 16, 2);
  return model;
}

MachineProfile machine(double hbm_gib, double cpu_gb_per_s = 100, double gpu_gb_per_s = 1000) {
  return patched_machine(fmt::format(
      R"({{"tiers": {{"hbm": {{"capacity_gib": {{"value": {}}}, "reserved_gib": {{"value": 0}}}}}},
          "cpu": {{"memory_bandwidth_gb_per_s": {{"value": {}}}}},
          "gpu": {{"memory_bandwidth_gb_per_s": {{"value": {}}}}}}})",
      hbm_gib, cpu_gb_per_s, gpu_gb_per_s));
}

struct Planned {
  Planned(const MachineProfile& profile, const ModelDimensions& model, const Options& options = {})
      : costs(profile, model), policy("experts", options, {SLUICE_SHIPPED_DIR}) {}

  Plan plan(const Workload& workload) { return make_plan(policy.policy(), costs, workload); }

  AnalyticModel costs;
  LoadedPolicy policy;
};

BatchShape shape_of(Phase phase, const Workload& workload) {
  return phase == Phase::prefill
             ? BatchShape::prefill(workload.batch, workload.input_tokens)
             : BatchShape::decode(workload.batch,
                                  workload.input_tokens + (workload.output_tokens + 1) / 2);
}

std::vector<BatchShape> cut(const BatchShape& shape, std::int64_t parts) {
  std::vector<BatchShape> cut_up(static_cast<std::size_t>(parts), shape);
  for (std::int64_t i = 0; i < parts; ++i)
    cut_up[static_cast<std::size_t>(i)].batch =
        shape.batch * (i + 1) / parts - shape.batch * i / parts;
  return cut_up;
}

/// One iteration of these sub-batches; `place(shape, homes)`.
template <typename Place>
double iteration_s(const CostModel& costs, const MemoryPlan& memory,
                   const std::vector<BatchShape>& sub_batches, Prefetch prefetch,
                   const Place& place) {
  std::vector<Chain> chains;
  for (const BatchShape& shape : sub_batches) {
    Chain& chain = chains.emplace_back(Chain{.parts = {{.shape = shape}}, .placements = {}});
    for (const LayerHomes& homes : memory.layers) chain.placements.push_back(place(shape, homes));
  }
  return estimate_iteration(costs, memory, chains, prefetch, Start::steady).seconds;
}

/// What the policy answers for a workload, as one estimate.
double own_s(Planned& planned, const MemoryPlan& memory, const Workload& workload) {
  CheckedPolicy& policy = planned.policy.policy();
  double sum = 0;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    std::vector<RequestView> requests;
    for (std::int64_t id = 0; id < workload.batch; ++id) {
      RequestView& request = requests.emplace_back();
      request.id = id;
      if (phase == Phase::prefill) {
        request.prompt_tokens_left = workload.input_tokens;
      } else {
        request.context_tokens = shape_of(phase, workload).context - 1;
      }
    }
    const auto parts = std::ssize(policy.plan_iteration(requests).sub_batches);
    const double seconds = iteration_s(planned.costs, memory, cut(shape_of(phase, workload), parts),
                                       policy.pipeline(phase).prefetch,
                                       [&](const BatchShape& shape, const LayerHomes& homes) {
                                         return policy.place(0, shape, homes);
                                       });
    sum += phase == Phase::prefill ? seconds
                                   : static_cast<double>(workload.output_tokens - 1) * seconds;
  }
  return sum;
}

/// The same homes of all else with so many hot experts, by the model's own routing.
MemoryPlan with_hot(const ModelDimensions& model, MemoryPlan memory, std::int64_t count) {
  memory.hot_experts.clear();
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    LayerHomes& homes = memory.layers[layer];
    homes[WeightKind::fc1] = homes[WeightKind::fc2] = Tier::ddr;
    std::vector<std::int32_t>& list = memory.hot_experts.emplace_back();
    for (const std::int64_t expert :
         model.routing->hottest(static_cast<std::int64_t>(layer), count))
      list.push_back(static_cast<std::int32_t>(expert));
  }
  count_hot_experts(model, memory);
  return memory;
}

/// The shortest of all numbers of hot experts that fit, all placements of each phase with p5 = p6,
/// one sub-batch or two.
double best_s(Planned& planned, const MemoryPlan& memory, const Workload& workload) {
  CheckedPolicy& policy = planned.policy.policy();
  const std::array<Pipeline, 2> pipelines = {policy.pipeline(Phase::prefill),
                                             policy.pipeline(Phase::decode)};
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t count = 0; count <= planned.costs.model().num_experts; ++count) {
    const MemoryPlan plan = with_hot(planned.costs.model(), memory, count);
    if (!fits_hbm(planned.costs, plan, pipelines, workload)) break;
    double sum = 0;
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      double least = std::numeric_limits<double>::infinity();
      for (unsigned bits = 0; bits < num_placements; ++bits) {
        const Placement placement = Placement::from_bits(bits);
        if (!can_place(planned.costs.model(), placement)) continue;
        for (std::int64_t parts = 1; parts <= std::min<std::int64_t>(2, workload.batch); ++parts) {
          const double seconds = iteration_s(
              planned.costs, plan, cut(shape_of(phase, workload), parts),
              pipelines[static_cast<std::size_t>(phase)].prefetch,
              [&](const BatchShape& /*shape*/, const LayerHomes& /*homes*/) { return placement; });
          least = std::min(least, seconds);
        }
      }
      sum +=
          phase == Phase::prefill ? least : static_cast<double>(workload.output_tokens - 1) * least;
    }
    best = std::min(best, sum);
  }
  return best;
}

TEST(ExpertsTest, IsWithinTwoPercentOfTheBestPlacementAndNumberOfHotExperts) {
  std::size_t with_hot_ones = 0;
  std::size_t in_halves = 0;
  for (const double hbm_gib : {0.7, 0.9, 1.2}) {
    // The last GPU is so slow that it should not get all that it has room for.
    for (const auto& [cpu, gpu] :
         {std::pair(100.0, 1000.0), std::pair(30.0, 1000.0), std::pair(200.0, 60.0)}) {
      for (const Workload& workload : {Workload{1, 64, 32}, Workload{1, 2048, 32},
                                       Workload{8, 64, 32}, Workload{48, 64, 32}}) {
        Planned planned(machine(hbm_gib, cpu, gpu), small_mixture());
        CheckedPolicy& policy = planned.policy.policy();
        policy.start(planned.costs, workload);
        const MemoryPlan memory = policy.plan_memory();
        ASSERT_EQ(policy.pipeline(Phase::prefill).mini_batches, 1);
        ASSERT_EQ(memory.layers.front().kv, Tier::hbm);
        const double own = own_s(planned, memory, workload);
        const double best = best_s(planned, memory, workload);
        EXPECT_LE(own, 1.02 * best) << hbm_gib << " GiB, " << cpu << " and " << gpu << " GB/s, "
                                    << workload.batch << " x " << workload.input_tokens;
        with_hot_ones += memory.hot_experts.empty() ? 0 : 1;
        in_halves += planned.plan(workload).decode.groups.front().num_sub_batches == 2 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(with_hot_ones, 12);
  EXPECT_GT(in_halves, 0);
}

TEST(ExpertsTest, TakesOneSubBatchOrTwoWhicheverIsFaster) {
  bool one_won = false;
  bool two_won = false;
  for (const std::int64_t context : {64, 4000}) {
    for (const std::int64_t batch : {2, 16, 64}) {
      const Workload workload = {batch, context, 32};
      const auto decode_s = [&](const char* sub_batches) {
        // Many long contexts take the GPU as long as experts take the CPU.
        Planned planned(machine(4, 400), small_mixture(),
                        {{"sub_batches", sub_batches}, {"hot", "none"}});
        return planned.plan(workload).decode.seconds();
      };
      const double one = decode_s("1");
      const double two = decode_s("2");
      EXPECT_LE(decode_s("auto"), 1.001 * std::min(one, two)) << batch << " x " << context;
      (one < two ? one_won : two_won) = true;
    }
  }
  EXPECT_TRUE(one_won && two_won);
}

TEST(ExpertsTest, KeepsAttentionInHbmAndTheListOfItsFile) {
  test::TemporaryFolder folder;
  RecordedRouting recorded;
  recorded.model = "another/small";
  recorded.rows = 100;
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    std::vector<std::int64_t>& counts = recorded.layers.emplace_back(16, 4);
    counts[static_cast<std::size_t>(layer)] = 100;  // 100 + 100 are two experts a row
    counts[static_cast<std::size_t>(layer + 8)] = 44;
  }
  const std::string file = folder.file("routing.json");
  std::ofstream(file) << format_routing(recorded);
  Planned planned(machine(0.75), small_mixture(0), {{"hot", file}});
  const Plan plan = planned.plan({1, 64, 32});
  ASSERT_FALSE(plan.memory.hot_experts.empty());
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const LayerHomes& homes = plan.memory.layers[layer];
    EXPECT_EQ(homes[WeightKind::query], Tier::hbm);
    EXPECT_EQ(homes[WeightKind::fc1], Tier::ddr);
    const std::vector<std::int32_t>& hot = plan.memory.hot_experts[layer];
    EXPECT_TRUE(std::ranges::find(hot, static_cast<std::int32_t>(layer)) != hot.end());
    EXPECT_TRUE(std::ranges::is_sorted(hot));
  }
  EXPECT_LE(plan.footprint.total(Tier::hbm),
            static_cast<double>(planned.costs.capacity_bytes(Tier::hbm)));
  EXPECT_EQ(plan.decode.main_group().cost.placement.to_string(), "000011");
}

TEST(ExpertsTest, LongPromptsStreamAndTokensAreComputedWhereTheExpertsAre) {
  ModelDimensions model = small_mixture();
  model.routing.reset();  // no expert is known to be hotter than another
  Planned planned(machine(0.7), model);
  const auto placement_at = [&](std::int64_t tokens) {
    return planned.plan({1, tokens, 32}).prefill.main_group().cost.placement.to_string();
  };
  EXPECT_EQ(placement_at(8), "000011");
  EXPECT_EQ(placement_at(8192), "000000");
  const Plan plan = planned.plan({1, 8192, 32});
  EXPECT_EQ(plan.decode.main_group().cost.placement.to_string(), "000011");
  EXPECT_TRUE(plan.memory.hot_experts.empty());
}

TEST(ExpertsTest, WithRoomForAllExpertsAllLayersAreResident) {
  ModelDimensions model = small_mixture();
  model.routing.reset();
  Planned planned(machine(8), model);
  EXPECT_EQ(planned.plan({4, 64, 32}).memory.resident_layers(), 4);
}

TEST(ExpertsTest, WhatItCannotDoIsOneLine) {
  const Workload workload = {1, 64, 32};
  ModelDimensions dense = small_mixture();
  dense.num_experts = dense.experts_per_token = 0;
  dense.routing.reset();
  Planned of_dense(machine(4), dense);
  testing::expect_error([&] { of_dense.plan(workload); },
                        {"the model has no experts", "--policy lia"});
  Planned small(machine(0.3), small_mixture());
  testing::expect_error([&] { small.plan(workload); },
                        {"HBM holds 0.3 GiB", "chunks of experts", "take --hbm"});
  // The size that it says does.
  std::string text;
  try {
    small.plan(workload);
  } catch (const Error& error) {
    text = error.what();
  }
  const double does = std::stod(text.substr(text.find("take ") + 5));
  Planned enough(machine(does), small_mixture());
  EXPECT_NO_THROW(enough.plan(workload)) << text;

  testing::expect_error(
      [&] {
        Planned(machine(1), small_mixture(), {{"hot", "/nowhere"}});
      },
      {"hot=/nowhere", "cannot be read", "--record-routing"});
  testing::expect_error(
      [&] {
        Planned(machine(1), small_mixture(), {{"sub_batches", "3"}});
      },
      {"sub_batches=3", "auto, 1, 2"});
  testing::expect_error(
      [&] {
        Planned(machine(1), small_mixture(), {{"decode", "0011"}});
      },
      {"decode=0011", "six digits"});
  test::TemporaryFolder folder;
  const auto refused = [&](const std::string& content,
                           std::initializer_list<std::string_view> words) {
    const std::string file = folder.file("routing.json");
    std::ofstream(file) << content;
    Planned planned(machine(1), small_mixture(), {{"hot", file}});
    testing::expect_error([&] { planned.plan(workload); }, words);
  };
  refused(R"({"model": "a", "rows": 1, "touched_by_rows": [], "layers": [[1, 1]]})",
          {"routing.json", "of another model", "1 layers"});
  refused(R"({"model": "a", "rows": 1, "touched_)", {"routing.json"});
  refused(R"({"model": "a", "rows": 1, "touched_by_rows": [], "layers": [[-1],[1],[1],[1]]})",
          {"routing.json"});
}

}  // namespace
}  // namespace sluice
