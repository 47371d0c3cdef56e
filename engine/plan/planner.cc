#include "engine/plan/planner.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "engine/batching/mini_batches.h"
#include "engine/plan/rehearsal.h"

namespace sluice {
namespace {

/// Mini-batches beyond so many are taken together: each chain's next step is looked for among all.
constexpr std::int64_t most_chains = 256;

/// Asks the policy where everything runs.
class PhasePlanner {
 public:
  PhasePlanner(CheckedPolicy& policy, const CostModel& costs, const MemoryPlan& memory)
      : policy_(policy), costs_(costs), memory_(memory) {}

  PhasePlan start(Phase phase) const { return {phase, policy_.pipeline(phase), {}}; }

  void add(const AlikeIterations& alike, PhasePlan& phase) {
    IterationGroup& group = phase.groups.emplace_back();
    group.count = alike.count;
    group.num_sub_batches = alike.sub_batches.size();
    for (std::size_t i = 0; i < alike.sub_batches.size(); ++i) {
      for (Chain& chain : chains_of(alike.sub_batches[i], i, phase.pipeline, group))
        group.chains.push_back(std::move(chain));
    }
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
      const BatchShape& shape = kinds.front().shape;
      const std::int64_t asked = std::min(pipeline.mini_batches, most_chains);
      BatchShape mini_batch = shape;
      mini_batch.batch /= std::clamp<std::int64_t>(asked, 1, shape.batch);
      add_layers({mini_batch, std::nullopt}, sub_batch, placed, group);
      std::vector<Chain> chains = cut_into_mini_batches(
          shape, std::min(num_chains(shape, asked, placed), most_chains), placed);
      // Those that only keep the devices from waiting have room in the GPU's memory.
      for (Chain& chain : chains) chain.takes_turns = asked > 1 && chains.size() > 1;
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

  /// As the engine cuts it. Where each layer is on one device the chains follow each other, and are
  /// one here.
  std::int64_t num_chains(const BatchShape& shape, std::int64_t asked,
                          const std::vector<Placement>& placed) const {
    const bool on_both = std::any_of(placed.begin(), placed.end(), [](const Placement& placement) {
      return placement.uses(Device::gpu) && placement.uses(Device::cpu);
    });
    const MiniBatches cut =
        on_both ? MiniBatches::of(shape.phase, asked, true) : MiniBatches{.asked = asked};
    return cut.count(shape.batch, shape.rows);
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

/// Where a layer's weights are then.
LayerHomes with_gpu_weights(LayerHomes homes, const Placement& placement) {
  for (const Sublayer sublayer : layer_sublayers) {
    if (placement[sublayer] != Device::gpu) continue;
    for (const WeightKind kind : weights_of(sublayer)) homes[kind] = Tier::hbm;
  }
  return homes;
}

MemoryPlan with_gpu_weights(MemoryPlan memory, const IterationGroup& group) {
  for (const Chain& chain : group.chains) {
    for (std::size_t layer = 0; layer < memory.layers.size(); ++layer)
      memory.layers[layer] = with_gpu_weights(memory.layers[layer], chain.placements[layer]);
  }
  return memory;
}

/// Whether the weights that come to HBM in one of the group's iterations have room there, beside
/// values of so many bytes, so that they stay: nothing then has to make room. Of the very first
/// iteration's weights those are in the way that this one does not use: its own take each other's
/// place first, which are of their sizes.
bool do_weights_stay(const CostModel& costs, const Plan& plan, const IterationGroup& group,
                     double value_bytes) {
  if (!plan.memory.uses_gpu) return false;
  const ModelDimensions& model = costs.model();
  const auto bytes_outside = [&](const MemoryPlan& memory) {
    return weights_outside_hbm_bytes(model, memory);
  };
  const MemoryPlan all = with_gpu_weights(plan.memory, group);
  const double outside = bytes_outside(plan.memory);
  const double passing = outside - bytes_outside(all);
  if (passing == 0) return false;
  const double in_the_way =
      bytes_outside(all) - bytes_outside(with_gpu_weights(all, plan.prefill.groups.front()));
  // Where they stay nothing else passes through.
  const double room = static_cast<double>(costs.capacity_bytes(Tier::hbm)) - value_bytes -
                      in_the_way - plan.footprint.weights[Tier::hbm] - plan.footprint.kv[Tier::hbm];
  return passing <= room;
}

/// Of so many iterations, when the first one differs.
IterationEstimate mean_with_first(const IterationEstimate& first, const IterationEstimate& others,
                                  std::int64_t count) {
  const double share = 1 / static_cast<double>(count);
  IterationEstimate mean{first.seconds * share + others.seconds * (1 - share), first.busy * share,
                         others.rest_s};
  mean.busy += others.busy * (1 - share);
  return mean;
}

/// Iterations when the weights that the GPU reads have come to HBM, and those that stay are there.
void keep_weights(const CostModel& costs, const MemoryPlan& homes, Prefetch prefetch,
                  IterationGroup& group) {
  MemoryPlan memory = with_gpu_weights(homes, group);
  if (memory.lm_head_device == Device::gpu) memory.lm_head = Tier::hbm;
  group.estimate = estimate_iteration(costs, memory, group.chains, prefetch, Start::steady);
  for (LayerGroup& layers : group.layers) {
    const Placement placement = layers.cost.placement;
    layers.cost =
        layer_cost(costs, placement, layers.shape, with_gpu_weights(layers.homes, placement));
  }
}

/// Values of the first iteration in HBM: the hidden states (f32) of all prompts, and all else of
/// one of the chains that the engine cuts them into. The footprint counts with whole mini-batches.
double prompt_value_bytes(const CostModel& costs, const Plan& plan) {
  std::int64_t rows = 0;
  std::int64_t in_chain = 0;
  for (const Chain& chain : plan.prefill.groups.front().chains) {
    std::int64_t its_rows = 0;
    std::int64_t longest = 0;
    for (const ChainPart& part : chain.parts) {
      its_rows += part.shape.total_rows();
      longest = std::max(longest, part.shape.rows);
    }
    const std::int64_t enough = std::max(longest, MiniBatches::enough_rows_of_prompts(true));
    rows += its_rows;
    in_chain = std::max(in_chain, std::min(its_rows, enough));
  }
  const ModelDimensions& model = costs.model();
  const double hidden_states =
      sizeof(float) * static_cast<double>(rows) * static_cast<double>(model.hidden_size);
  return std::min(plan.footprint.activations[Tier::hbm],
                  hidden_states + activation_bytes(model, static_cast<double>(in_chain)));
}

/// All iterations but the one that brings them, the first one, or, when prompts leave no room, the
/// first one that decodes, which is then part of its group's mean.
void keep_weights(const CostModel& costs, Plan& plan, double passing_kv) {
  const IterationGroup& first = plan.prefill.groups.front();
  const double prompts_bytes = prompt_value_bytes(costs, plan) + passing_kv;
  const double tokens_bytes =
      passing_kv +
      decode_activation_bytes(costs.model(), plan.memory, plan.decode.pipeline, plan.workload);
  const bool stay_beside_prompts = do_weights_stay(costs, plan, first, prompts_bytes);
  const MemoryPlan after_prompts = with_gpu_weights(plan.memory, first);
  for (PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (IterationGroup& group : phase->groups) {
      if (&group == &first) continue;
      if (!do_weights_stay(costs, plan, group,
                           phase->phase == Phase::prefill ? prompts_bytes : tokens_bytes))
        continue;
      const IterationEstimate bringing = group.estimate;
      keep_weights(costs, plan.memory, phase->pipeline.prefetch, group);
      plan.weights_stay = true;
      const bool are_there = stay_beside_prompts &&
                             with_gpu_weights(after_prompts, group).layers == after_prompts.layers;
      if (!are_there && &group == &plan.decode.groups.front() && group.count > 0)
        group.estimate = mean_with_first(bringing, group.estimate, group.count);
    }
  }
}

double mean_time_per_output_token_s(const Rehearsal& rehearsal, const Plan& plan) {
  if (plan.workload.output_tokens == 1) return plan.decode.mean_iteration_s();
  std::vector<IterationEstimate> iterations;
  for (const PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (const IterationGroup& group : phase->groups) iterations.push_back(group.estimate);
  }
  return rehearsal.time_per_output_token_s(iterations);
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

namespace {

/// What runs where, and what it takes of each tier. Nothing of how long it takes.
struct Outline {
  Plan plan;
  Rehearsal rehearsal;
  double passing_kv = 0;

  Outline(CheckedPolicy& policy, const CostModel& costs, const Workload& workload)
      : plan(started(policy, costs, workload)), rehearsal(policy, plan.workload, plan.memory) {
    PhasePlanner planner(policy, costs, plan.memory);
    plan.prefill = planner.start(Phase::prefill);
    plan.decode = planner.start(Phase::decode);
    for (const AlikeIterations& alike : rehearsal.groups())
      planner.add(alike, alike.phase == Phase::prefill ? plan.prefill : plan.decode);
    passing_kv = most_passing_kv(costs.model(), plan);
    plan.footprint = footprint(costs, plan.memory, {plan.prefill.pipeline, plan.decode.pipeline},
                               plan.workload, passing_kv);
    // plan_memory() was checked before it was known where attention runs.
    const std::string problem = capacity_problem(plan.footprint, costs, CapacityCheck::hbm_only);
    if (!problem.empty()) throw Error("policy {}: place: {}", policy.name(), problem);
    plan.shortage = capacity_problem(plan.footprint, costs, CapacityCheck::every_tier);
  }

 private:
  static Plan started(CheckedPolicy& policy, const CostModel& costs, const Workload& asked) {
    Plan plan;
    plan.workload = asked;
    plan.workload.input_tokens = std::max<std::int64_t>(1, asked.input_tokens);
    plan.workload.output_tokens = std::max<std::int64_t>(1, asked.output_tokens);
    policy.start(costs, plan.workload);
    plan.memory = policy.plan_memory(CapacityCheck::hbm_only);
    return plan;
  }
};

/// How long everything takes. The very first iteration finds nothing loaded.
void estimate(const CostModel& costs, Plan& plan) {
  for (PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (IterationGroup& group : phase->groups) {
      const bool first = &group == &plan.prefill.groups.front();
      group.estimate =
          estimate_iteration(costs, plan.memory, group.chains, phase->pipeline.prefetch,
                             first ? Start::cold : Start::steady);
    }
  }
}

}  // namespace

Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& asked) {
  Outline outline(policy, costs, asked);
  Plan& plan = outline.plan;
  estimate(costs, plan);
  keep_weights(costs, plan, outline.passing_kv);
  plan.tpot_s = mean_time_per_output_token_s(outline.rehearsal, plan);
  return std::move(plan);
}
namespace {

/// False: the plan would have a shortage. Cheap: no iteration is looked at.
bool may_fit(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  policy.start(costs, workload);
  const MemoryPlan memory = policy.plan_memory(CapacityCheck::hbm_only);
  return capacity_problem(
             footprint(costs, memory,
                       {policy.pipeline(Phase::prefill), policy.pipeline(Phase::decode)}, workload),
             costs, CapacityCheck::every_tier)
      .empty();
}

}  // namespace

std::int64_t largest_fitting_batch(CheckedPolicy& policy, const CostModel& costs,
                                   Workload workload) {
  const auto largest = [&](std::int64_t most, const auto& fits) {
    const auto is_there = [&](std::int64_t batch) {
      if (batch > most) return false;
      workload.batch = batch;
      try {
        return fits(workload);
      } catch (const Error&) {
        return false;
      }
    };
    std::int64_t batch = 0;
    std::int64_t step = 1;
    for (; is_there(batch + step); step *= 2) batch += step;
    for (step /= 2; step > 0; step /= 2) {
      if (is_there(batch + step)) batch += step;
    }
    return batch;
  };
  const auto fits = [&](const Workload& asked) {
    return Outline(policy, costs, asked).plan.shortage.empty();
  };
  const std::int64_t most =
      largest(most_sequences, [&](const Workload& asked) { return may_fit(policy, costs, asked); });
  // Most often what may fit does.
  workload.batch = most;
  try {
    if (most == 0 || fits(workload)) return most;
  } catch (const Error&) {  // KV that passes through HBM finds no room
  }
  return largest(most - 1, fits);
}

Staging staging_of(const Plan& plan, const ModelDimensions& model) {
  const MemoryPlan& memory = plan.memory;
  double bytes = std::max(staging_bytes(model, memory, plan.prefill.pipeline.prefetch),
                          staging_bytes(model, memory, plan.decode.pipeline.prefetch));
  if (memory.lm_head_device == Device::gpu && memory.lm_head != Tier::hbm)
    bytes += model.head_bytes(lm_head_elements(model));
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
