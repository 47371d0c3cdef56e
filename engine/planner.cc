#include "engine/planner.h"

#include <algorithm>

namespace sluice {
namespace {

PhasePlan plan_phase(CheckedPolicy& policy, const CostModel& costs, const MemoryPlan& memory,
                     const BatchShape& shape, Start start) {
  PhasePlan phase;
  phase.shape = shape;
  phase.pipeline = policy.pipeline(shape.phase);
  std::vector<Placement> placements;
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    placements.push_back(
        policy.place(static_cast<std::int64_t>(layer), shape, memory.layers[layer]));
  }
  const std::vector<Chain> chains =
      cut_into_mini_batches(shape, phase.pipeline.mini_batches, placements);
  phase.iteration = estimate_iteration(costs, memory, chains, phase.pipeline.prefetch, start);

  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const LayerHomes& homes = memory.layers[layer];
    const auto same =
        std::find_if(phase.groups.begin(), phase.groups.end(), [&](const LayerGroup& group) {
          return group.homes == homes && group.cost.placement == placements[layer];
        });
    if (same != phase.groups.end()) {
      ++same->num_layers;
      continue;
    }
    phase.groups.push_back(
        {1, homes,
         layer_cost(costs, placements[layer], chains.front().parts.front().shape, homes)});
  }
  std::stable_sort(
      phase.groups.begin(), phase.groups.end(),
      [](const LayerGroup& a, const LayerGroup& b) { return a.num_layers > b.num_layers; });
  return phase;
}

}  // namespace

const LayerGroup& PhasePlan::main_group() const {
  for (const LayerGroup& group : groups) {
    if (!group.homes.resident()) return group;
  }
  return groups.front();
}

std::pair<std::string_view, double> Plan::lower_bound() const {
  BusyTimes busy = prefill.iteration.busy * static_cast<double>(prefill.iterations);
  busy += decode.iteration.busy * static_cast<double>(decode.iterations);
  return busy.busiest();
}

Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  Plan plan;
  plan.workload = workload;
  policy.start(costs, workload);
  plan.memory = policy.plan_memory(CapacityCheck::hbm_only);
  plan.footprint =
      footprint(costs, plan.memory,
                {policy.pipeline(Phase::prefill), policy.pipeline(Phase::decode)}, workload);
  plan.prefill =
      plan_phase(policy, costs, plan.memory,
                 BatchShape::prefill(workload.batch, workload.input_tokens), Start::cold);
  plan.decode = plan_phase(
      policy, costs, plan.memory,
      BatchShape::decode(workload.batch, workload.input_tokens + (workload.output_tokens + 1) / 2),
      Start::steady);
  plan.decode.iterations = workload.output_tokens - 1;
  return plan;
}

}  // namespace sluice
