#include "engine/plan/planner.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "engine/plan/rehearsal.h"

namespace sluice {
namespace {

/// Asks the policy where everything runs, and estimates.
class PhasePlanner {
 public:
  PhasePlanner(CheckedPolicy& policy, const CostModel& costs, const MemoryPlan& memory)
      : policy_(policy), costs_(costs), memory_(memory) {}

  PhasePlan start(Phase phase) const { return {phase, policy_.pipeline(phase), {}}; }

  void add(const AlikeIterations& alike, Start start, PhasePlan& phase) {
    IterationGroup& group = phase.groups.emplace_back();
    group.count = alike.count;
    group.num_sub_batches = alike.sub_batches.size();
    for (std::size_t i = 0; i < alike.sub_batches.size(); ++i) {
      for (Chain& chain : chains_of(alike.sub_batches[i], i, phase.pipeline, group))
        group.chains.push_back(std::move(chain));
    }
    group.estimate =
        estimate_iteration(costs_, memory_, group.chains, phase.pipeline.prefetch, start);
    std::stable_sort(
        group.layers.begin(), group.layers.end(),
        [](const LayerGroup& a, const LayerGroup& b) { return a.num_layers > b.num_layers; });
  }

 private:
  LayerHomes homes_of(std::size_t layer, const RequestKind& kind) const {
    LayerHomes homes = memory_.layers[layer];
    if (kind.kv) homes.kv = *kind.kv;
    return homes;
  }

  std::vector<Placement> placements(const RequestKind& kind) {
    std::vector<Placement> result;
    for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
      result.push_back(
          policy_.place(static_cast<std::int64_t>(layer), kind.shape, homes_of(layer, kind)));
    }
    return result;
  }

  std::vector<Chain> chains_of(const std::vector<RequestKind>& kinds, std::size_t sub_batch,
                               const Pipeline& pipeline, IterationGroup& group) {
    if (kinds.size() == 1 && !kinds.front().kv) {
      const std::vector<Placement> placed = placements(kinds.front());
      std::vector<Chain> chains =
          cut_into_mini_batches(kinds.front().shape, pipeline.mini_batches, placed);
      add_layers({chains.front().parts.front().shape, std::nullopt}, sub_batch, placed, group);
      return chains;
    }
    Chain chain;
    for (const RequestKind& kind : kinds) {
      const std::vector<Placement> placed = placements(kind);
      chain.parts.push_back(
          {.shape = kind.shape, .attention = placed.front()[Sublayer::qk], .kv = kind.kv});
      if (chain.placements.empty()) chain.placements = placed;
      add_layers(kind, sub_batch, placed, group);
    }
    return {chain};
  }

  void add_layers(const RequestKind& kind, std::size_t sub_batch,
                  const std::vector<Placement>& placed, IterationGroup& group) const {
    const std::size_t first = group.layers.size();
    for (std::size_t layer = 0; layer < placed.size(); ++layer) {
      const LayerHomes homes = homes_of(layer, kind);
      const auto same =
          std::find_if(group.layers.begin() + static_cast<std::ptrdiff_t>(first),
                       group.layers.end(), [&](const LayerGroup& layers) {
                         return layers.homes == homes && layers.cost.placement == placed[layer];
                       });
      if (same != group.layers.end()) {
        ++same->num_layers;
        continue;
      }
      group.layers.push_back(
          {1, sub_batch, kind.shape, homes, layer_cost(costs_, placed[layer], kind.shape, homes)});
    }
  }

  CheckedPolicy& policy_;
  const CostModel& costs_;
  const MemoryPlan& memory_;
};

/// The most KV that passes through HBM in one iteration, in bytes. Prompts have theirs where they
/// run.
double most_passing_kv(const ModelDimensions& model, const Plan& plan) {
  double most = 0;
  for (const PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (const IterationGroup& group : phase->groups) {
      if (group.count == 0) continue;
      most = std::max(most, passing_kv_bytes(model, plan.memory, group.chains,
                                             phase->pipeline.prefetch, plan.workload));
    }
  }
  return most;
}

/// Where a layer's weights are once those that the GPU reads have come to HBM.
LayerHomes with_gpu_weights(LayerHomes homes, const Placement& placement) {
  for (const Sublayer sublayer : layer_sublayers) {
    if (placement[sublayer] != Device::gpu) continue;
    for (const WeightKind kind : weights_of(sublayer)) homes[kind] = Tier::hbm;
  }
  return homes;
}

/// Whether HBM has room for all the weights that come there, and nothing has to make room.
bool has_room_for_all_weights(const CostModel& costs, const Plan& plan, double passing_kv) {
  const MemoryPlan& memory = plan.memory;
  const double passing = weights_outside_hbm_bytes(costs.model(), memory);
  return memory.uses_gpu && passing > 0 && passing_kv == 0 &&
         plan.footprint.total(Tier::hbm) + passing <=
             static_cast<double>(costs.capacity_bytes(Tier::hbm));
}

/// Iterations when the weights that the GPU reads have come to HBM; says whether that changes them.
bool keep_weights(const CostModel& costs, const MemoryPlan& homes, Prefetch prefetch,
                  IterationGroup& group) {
  MemoryPlan memory = homes;
  for (const Chain& chain : group.chains) {
    for (std::size_t layer = 0; layer < memory.layers.size(); ++layer)
      memory.layers[layer] = with_gpu_weights(memory.layers[layer], chain.placements[layer]);
  }
  if (memory.layers == homes.layers) return false;
  if (memory.lm_head_device == Device::gpu) memory.lm_head = Tier::hbm;
  group.estimate = estimate_iteration(costs, memory, group.chains, prefetch, Start::steady);
  for (LayerGroup& layers : group.layers) {
    const Placement placement = layers.cost.placement;
    layers.cost =
        layer_cost(costs, placement, layers.shape, with_gpu_weights(layers.homes, placement));
  }
  return true;
}

/// All iterations but the first one, which brings them.
bool keep_weights(const CostModel& costs, Plan& plan) {
  bool changes = false;
  for (PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (IterationGroup& group : phase->groups) {
      if (&group == &plan.prefill.groups.front()) continue;
      if (keep_weights(costs, plan.memory, phase->pipeline.prefetch, group)) changes = true;
    }
  }
  return changes;
}

double mean_time_per_output_token_s(const Rehearsal& rehearsal, const Plan& plan) {
  if (plan.workload.output_tokens == 1) return plan.decode.mean_iteration_s();
  std::vector<double> iteration_s;
  for (const PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (const IterationGroup& group : phase->groups) iteration_s.push_back(group.estimate.seconds);
  }
  return rehearsal.time_per_output_token_s(iteration_s);
}

}  // namespace

std::int64_t PhasePlan::iterations() const {
  std::int64_t count = 0;
  for (const IterationGroup& group : groups) count += group.count;
  return count;
}

double PhasePlan::seconds() const {
  double sum = 0;
  for (const IterationGroup& group : groups)
    sum += static_cast<double>(group.count) * group.estimate.seconds;
  return sum;
}

BusyTimes PhasePlan::busy() const {
  BusyTimes sum;
  for (const IterationGroup& group : groups)
    sum += group.estimate.busy * static_cast<double>(group.count);
  return sum;
}

double PhasePlan::mean_iteration_s() const {
  const std::int64_t count = iterations();
  return count == 0 ? groups.front().estimate.seconds : seconds() / static_cast<double>(count);
}

const LayerGroup& PhasePlan::main_group() const {
  const LayerGroup* main = nullptr;
  std::tuple<bool, bool, std::int64_t> most;
  for (const IterationGroup& group : groups) {
    for (const LayerGroup& layers : group.layers) {
      const std::tuple rank(
          layers.shape.phase == phase, !layers.homes.resident(),
          layers.shape.batch * layers.num_layers * std::max<std::int64_t>(1, group.count));
      if (main != nullptr && rank <= most) continue;
      main = &layers;
      most = rank;
    }
  }
  return *main;
}

std::pair<std::string_view, double> Plan::lower_bound() const {
  BusyTimes busy = prefill.busy();
  busy += decode.busy();
  return busy.busiest();
}

Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& asked) {
  Plan plan;
  plan.workload = asked;
  plan.workload.input_tokens = std::max<std::int64_t>(1, asked.input_tokens);
  plan.workload.output_tokens = std::max<std::int64_t>(1, asked.output_tokens);
  const Workload& workload = plan.workload;
  policy.start(costs, workload);
  plan.memory = policy.plan_memory(CapacityCheck::hbm_only);
  const Rehearsal rehearsal(policy, workload, plan.memory);
  PhasePlanner planner(policy, costs, plan.memory);
  plan.prefill = planner.start(Phase::prefill);
  plan.decode = planner.start(Phase::decode);
  for (const AlikeIterations& alike : rehearsal.groups()) {
    const bool first = plan.prefill.groups.empty();
    planner.add(alike, first ? Start::cold : Start::steady,
                alike.phase == Phase::prefill ? plan.prefill : plan.decode);
  }
  const double passing_kv = most_passing_kv(costs.model(), plan);
  plan.footprint = footprint(costs, plan.memory, {plan.prefill.pipeline, plan.decode.pipeline},
                             workload, passing_kv);
  // plan_memory() was checked before it was known where attention runs.
  const std::string problem = capacity_problem(plan.footprint, costs, CapacityCheck::hbm_only);
  if (!problem.empty()) throw Error("policy {}: {}", policy.name(), problem);
  plan.shortage = capacity_problem(plan.footprint, costs, CapacityCheck::every_tier);
  if (has_room_for_all_weights(costs, plan, passing_kv))
    plan.weights_stay = keep_weights(costs, plan);
  plan.tpot_s = mean_time_per_output_token_s(rehearsal, plan);
  return plan;
}

std::int64_t largest_fitting_batch(CheckedPolicy& policy, const CostModel& costs,
                                   Workload workload) {
  const auto fits = [&](std::int64_t batch) {
    if (batch > most_sequences) return false;
    workload.batch = batch;
    try {
      return make_plan(policy, costs, workload).shortage.empty();
    } catch (const Error&) {
      return false;
    }
  };
  std::int64_t batch = 0;
  std::int64_t step = 1;
  for (; fits(batch + step); step *= 2) batch += step;
  for (step /= 2; step > 0; step /= 2) {
    if (fits(batch + step)) batch += step;
  }
  return batch;
}

Staging staging_of(const Plan& plan, const ModelDimensions& model) {
  const MemoryPlan& memory = plan.memory;
  double bytes = std::max(staging_bytes(model, memory, plan.prefill.pipeline.prefetch),
                          staging_bytes(model, memory, plan.decode.pipeline.prefetch));
  if (memory.lm_head_device == Device::gpu && memory.lm_head != Tier::hbm)
    bytes += model.table_bytes(lm_head_elements(model));
  Staging staging{.bytes = static_cast<std::uint64_t>(bytes),
                  .ahead = plan.decode.pipeline.prefetch};
  const double host_bytes =
      std::max(disk_staging_bytes(model, memory, plan.prefill.pipeline.prefetch),
               disk_staging_bytes(model, memory, plan.decode.pipeline.prefetch));
  if (host_bytes > 0 || plan.footprint.kv[Tier::disk] > 0)
    staging.host_bytes = static_cast<std::uint64_t>(host_bytes);
  return staging;
}

}  // namespace sluice
