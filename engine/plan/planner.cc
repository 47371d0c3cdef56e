#include "engine/plan/planner.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {
namespace {

/// Requests of one sub-batch that are in one phase and have their KV on one tier.
struct Kind {
  BatchShape shape;
  std::optional<Tier> kv;  ///< nothing: the layers' home

  bool like(Phase phase, std::optional<Tier> tier) const {
    return shape.phase == phase && kv == tier;
  }
};

/// Sub-batches, each by kinds.
using Composition = std::vector<std::vector<Kind>>;

class PhasePlanner {
 public:
  PhasePlanner(CheckedPolicy& policy, const CostModel& costs, const Plan& plan)
      : policy_(policy), costs_(costs), plan_(plan), memory_(plan.memory) {}

  PhasePlan prefill() {
    const std::vector<RequestView> all = requests(plan_.workload.input_tokens, 0);
    const Composition first = compose(all);
    PhasePlan phase = estimate(Phase::prefill, first, Start::cold);
    // Each further iteration takes on what the first one did; only as many as are left.
    phase.iterations = static_cast<double>(all.size()) / sequences(first);
    return phase;
  }

  PhasePlan decode() {
    const Workload& workload = plan_.workload;
    const std::vector<RequestView> all =
        requests(0, workload.input_tokens + (workload.output_tokens + 1) / 2 - 1);
    const Composition middle = compose(all);
    PhasePlan phase = estimate(Phase::decode, middle, Start::steady);
    // Requests that an iteration leaves out have their turn in another one.
    phase.iterations = static_cast<double>(workload.output_tokens - 1) *
                       static_cast<double>(all.size()) / sequences(middle);
    return phase;
  }

 private:
  std::vector<RequestView> requests(std::int64_t prompt_tokens, std::int64_t context) const {
    std::vector<RequestView> views;
    for (std::int64_t id = 0; id < plan_.workload.batch; ++id) {
      views.push_back({.id = id,
                       .prompt_tokens_left = prompt_tokens,
                       .context_tokens = context,
                       .kv = id < memory_.hbm_requests ? Tier::hbm : memory_.layers.front().kv});
    }
    return views;
  }

  Composition compose(const std::vector<RequestView>& views) {
    Composition composition;
    for (const SubBatchPlan& sub_batch : policy_.plan_iteration(views).sub_batches) {
      std::vector<Kind>& kinds = composition.emplace_back();
      for (const std::int64_t id : sub_batch.requests)
        add(views.at(static_cast<std::size_t>(id)), kinds);
    }
    if (composition.empty())
      throw Error("policy {} runs none of {} requests", policy_.name(), views.size());
    return composition;
  }

  void add(const RequestView& view, std::vector<Kind>& kinds) const {
    const bool prompt = view.prompt_tokens_left > 0;
    const Phase phase = prompt ? Phase::prefill : Phase::decode;
    std::optional<Tier> kv;
    if (view.id < memory_.hbm_requests) kv = Tier::hbm;
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const Kind& kind) { return kind.like(phase, kv); });
    if (same != kinds.end()) {
      ++same->shape.batch;
      return;
    }
    kinds.push_back({prompt ? BatchShape::prefill(1, view.prompt_tokens_left)
                            : BatchShape::decode(1, view.context_tokens + 1),
                     kv});
  }

  static double sequences(const Composition& composition) {
    std::int64_t count = 0;
    for (const auto& kinds : composition) {
      for (const Kind& kind : kinds) count += kind.shape.batch;
    }
    return static_cast<double>(count);
  }

  LayerHomes homes_of(std::size_t layer, const Kind& kind) const {
    LayerHomes homes = memory_.layers[layer];
    if (kind.kv) homes.kv = *kind.kv;
    return homes;
  }

  std::vector<Placement> placements(const Kind& kind) {
    std::vector<Placement> result;
    for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
      result.push_back(
          policy_.place(static_cast<std::int64_t>(layer), kind.shape, homes_of(layer, kind)));
    }
    return result;
  }

  PhasePlan estimate(Phase phase, const Composition& composition, Start start) {
    PhasePlan result;
    result.pipeline = policy_.pipeline(phase);
    result.num_sub_batches = composition.size();
    for (std::size_t i = 0; i < composition.size(); ++i) {
      for (Chain& chain : chains_of(composition[i], i, result))
        result.chains.push_back(std::move(chain));
    }
    result.iteration =
        estimate_iteration(costs_, memory_, result.chains, result.pipeline.prefetch, start);
    std::stable_sort(
        result.groups.begin(), result.groups.end(),
        [](const LayerGroup& a, const LayerGroup& b) { return a.num_layers > b.num_layers; });
    return result;
  }

  std::vector<Chain> chains_of(const std::vector<Kind>& kinds, std::size_t sub_batch,
                               PhasePlan& phase) {
    if (kinds.size() == 1 && !kinds.front().kv) {
      const std::vector<Placement> placed = placements(kinds.front());
      std::vector<Chain> chains =
          cut_into_mini_batches(kinds.front().shape, phase.pipeline.mini_batches, placed);
      const Kind part = {chains.front().parts.front().shape, std::nullopt};
      add_groups(part, sub_batch, placed, phase);
      return chains;
    }
    Chain chain;
    for (const Kind& kind : kinds) {
      const std::vector<Placement> placed = placements(kind);
      chain.parts.push_back(
          {.shape = kind.shape, .attention = placed.front()[Sublayer::qk], .kv = kind.kv});
      if (chain.placements.empty()) chain.placements = placed;
      add_groups(kind, sub_batch, placed, phase);
    }
    return {chain};
  }

  void add_groups(const Kind& kind, std::size_t sub_batch, const std::vector<Placement>& placed,
                  PhasePlan& phase) const {
    const std::size_t first = phase.groups.size();
    for (std::size_t layer = 0; layer < placed.size(); ++layer) {
      const LayerHomes homes = homes_of(layer, kind);
      const auto same =
          std::find_if(phase.groups.begin() + static_cast<std::ptrdiff_t>(first),
                       phase.groups.end(), [&](const LayerGroup& group) {
                         return group.homes == homes && group.cost.placement == placed[layer];
                       });
      if (same != phase.groups.end()) {
        ++same->num_layers;
        continue;
      }
      phase.groups.push_back(
          {1, sub_batch, kind.shape, homes, layer_cost(costs_, placed[layer], kind.shape, homes)});
    }
  }

  CheckedPolicy& policy_;
  const CostModel& costs_;
  const Plan& plan_;
  const MemoryPlan& memory_;
};

/// Where a layer's weights are once those that the GPU reads have come to HBM.
LayerHomes with_gpu_weights(LayerHomes homes, const Placement& placement) {
  for (const Sublayer sublayer : layer_sublayers) {
    if (placement[sublayer] != Device::gpu) continue;
    for (const WeightKind kind : weights_of(sublayer)) homes[kind] = Tier::hbm;
  }
  return homes;
}

/// Whether HBM has room for all the weights that come there, and nothing has to make room.
bool has_room_for_all_weights(const CostModel& costs, const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  const double passing = weights_outside_hbm_bytes(costs.model(), memory);
  const double kv = passing_kv_bytes(costs.model(), memory, plan.decode.chains,
                                     plan.decode.pipeline.prefetch, plan.workload);
  return memory.uses_gpu && passing > 0 && kv == 0 &&
         plan.footprint.total(Tier::hbm) + passing <=
             static_cast<double>(costs.capacity_bytes(Tier::hbm));
}

/// Decoding when the weights that the GPU reads have come to HBM; says whether that changes it.
bool keep_weights(const CostModel& costs, const MemoryPlan& homes, PhasePlan& phase) {
  MemoryPlan memory = homes;
  for (const Chain& chain : phase.chains) {
    for (std::size_t layer = 0; layer < memory.layers.size(); ++layer)
      memory.layers[layer] = with_gpu_weights(memory.layers[layer], chain.placements[layer]);
  }
  if (memory.layers == homes.layers) return false;
  if (memory.lm_head_device == Device::gpu) memory.lm_head = Tier::hbm;
  phase.iteration =
      estimate_iteration(costs, memory, phase.chains, phase.pipeline.prefetch, Start::steady);
  for (LayerGroup& group : phase.groups) {
    const Placement placement = group.cost.placement;
    group.cost =
        layer_cost(costs, placement, group.shape, with_gpu_weights(group.homes, placement));
  }
  return true;
}

}  // namespace

const LayerGroup& PhasePlan::main_group() const {
  return *std::max_element(groups.begin(), groups.end(),
                           [](const LayerGroup& a, const LayerGroup& b) {
                             if (a.homes.resident() != b.homes.resident())
                               return a.homes.resident();
                             return a.shape.batch * a.num_layers < b.shape.batch * b.num_layers;
                           });
}

double Plan::tpot_s() const {
  return workload.output_tokens > 1
             ? decode.seconds() / static_cast<double>(workload.output_tokens - 1)
             : decode.iteration.seconds;
}

std::pair<std::string_view, double> Plan::lower_bound() const {
  BusyTimes busy = prefill.busy();
  busy += decode.busy();
  return busy.busiest();
}

Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  Plan plan;
  plan.workload = workload;
  policy.start(costs, workload);
  plan.memory = policy.plan_memory(CapacityCheck::hbm_only);
  PhasePlanner planner(policy, costs, plan);
  plan.prefill = planner.prefill();
  plan.decode = planner.decode();
  plan.footprint =
      footprint(costs, plan.memory, {plan.prefill.pipeline, plan.decode.pipeline}, workload,
                workload.output_tokens > 1 ? std::span<const Chain>(plan.decode.chains)
                                           : std::span<const Chain>());
  // plan_memory() was checked before it was known where attention runs.
  const std::string problem = capacity_problem(plan.footprint, costs, CapacityCheck::hbm_only);
  if (!problem.empty()) throw Error("policy {}: {}", policy.name(), problem);
  plan.shortage = capacity_problem(plan.footprint, costs, CapacityCheck::every_tier);
  if (has_room_for_all_weights(costs, plan))
    plan.weights_stay = keep_weights(costs, plan.memory, plan.decode);
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
    bytes += model.table_bytes(static_cast<double>(model.vocab_size * model.embed_size));
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
