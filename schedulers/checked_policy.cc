#include "schedulers/checked_policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/units.h"

namespace sluice {
namespace {

std::string tiers_of(const CostModel& costs) {
  std::vector<std::string_view> names;
  for (const Tier tier : all_tiers) {
    if (costs.capacity_bytes(tier) > 0) names.push_back(to_string(tier));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_tier(const CostModel& costs, Tier tier, const std::string& what) {
  if (tier > Tier::disk) throw Error("{} has no tier at all", what);
  if (costs.capacity_bytes(tier) > 0) return;
  throw Error("{} is to live in {}, which this machine does not have (it has {})", what,
              to_string(tier), tiers_of(costs));
}

void check_homes(const MemoryPlan& plan, const CostModel& costs) {
  if (plan.hbm_requests < 0)
    throw Error("hbm_requests is {}; 0 or more are possible", plan.hbm_requests);
  const auto num_layers = static_cast<std::size_t>(costs.model().num_layers);
  if (plan.layers.size() != num_layers)
    throw Error("it gives homes to {} layers, the model has {}", plan.layers.size(), num_layers);
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const LayerHomes& homes = plan.layers[layer];
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      check_tier(costs, homes[weight], fmt::format("layer {}'s {}", layer, to_string(weight)));
    }
    check_tier(costs, homes.kv, fmt::format("layer {}'s KV", layer));
  }
  check_tier(costs, plan.embedding, "the embedding");
  check_tier(costs, plan.lm_head, "the LM head");
}

void check_iteration_plan(const IterationPlan& plan, const std::vector<RequestView>& requests) {
  std::vector<std::int64_t> known;
  known.reserve(requests.size());
  for (const RequestView& request : requests) known.push_back(request.id);
  std::sort(known.begin(), known.end());
  std::vector<bool> seen(known.size());
  for (std::size_t i = 0; i < plan.sub_batches.size(); ++i) {
    const SubBatchPlan& sub_batch = plan.sub_batches[i];
    if (sub_batch.requests.empty()) throw Error("sub-batch {} is empty; leave it out", i);
    for (const std::int64_t id : sub_batch.requests) {
      const auto at = std::lower_bound(known.begin(), known.end(), id);
      if (at == known.end() || *at != id) {
        throw Error("sub-batch {} has request {}, which is none of the {} that it was given", i, id,
                    requests.size());
      }
      const auto number = static_cast<std::size_t>(at - known.begin());
      if (seen[number])
        throw Error("request {} is there twice; a request runs once an iteration", id);
      seen[number] = true;
    }
  }
}

/// At most so many, if it says so.
void check_prompts(const IterationPlan& plan, const std::vector<RequestView>& requests,
                   std::int64_t at_once) {
  if (at_once == 0) return;
  std::set<std::int64_t> prompts;
  for (const RequestView& request : requests) {
    if (request.prompt_tokens_left > 0) prompts.insert(request.id);
  }
  std::int64_t count = 0;
  for (const SubBatchPlan& sub_batch : plan.sub_batches) {
    for (const std::int64_t id : sub_batch.requests) count += prompts.contains(id) ? 1 : 0;
  }
  if (count > at_once)
    throw Error("it runs {} prompts, though its pipeline says {} at once", count, at_once);
}

void check_pipeline(const Pipeline& pipeline, const Workload& workload) {
  if (pipeline.mini_batches < 1 || pipeline.mini_batches > workload.batch)
    throw Error("{} mini-batches for a batch of {}; 1 to {} are possible", pipeline.mini_batches,
                workload.batch, workload.batch);
  if (pipeline.prefetch > Prefetch::layer)
    throw Error("its prefetch is {}, which is no Prefetch", static_cast<int>(pipeline.prefetch));
  if (pipeline.requests_at_once < 0)
    throw Error("{} requests at once; 0, for all, or more are possible", pipeline.requests_at_once);
}

}  // namespace

std::string capacity_problem(const Footprint& footprint, const CostModel& costs,
                             CapacityCheck check) {
  const auto size_text = [](double bytes) {
    return format_bytes(static_cast<std::uint64_t>(bytes));
  };
  for (const Tier tier : all_tiers) {
    if (check == CapacityCheck::hbm_only && tier != Tier::hbm) continue;
    const double wanted = footprint.total(tier);
    const auto there = static_cast<double>(costs.capacity_bytes(tier));
    if (wanted <= there) continue;
    const char* advice = footprint.weights[tier] <= there
                             ? "a smaller batch or shorter sequences need less"
                             : "its weights alone are too many";
    return fmt::format(
        "it needs {} of {} (weights {}, KV {}, on the way {}, activations {}), which holds {}; {}",
        size_text(wanted), to_string(tier), size_text(footprint.weights[tier]),
        size_text(footprint.kv[tier]), size_text(footprint.staging[tier]),
        size_text(footprint.activations[tier]), size_text(there), advice);
  }
  return "";
}

template <typename Call>
auto CheckedPolicy::guarded(const char* what, const Call& call) {
  return guarded(what,
                 origin_ == PolicyOrigin::own ? "correct the policy, or take another with --policy"
                                              : "take another with --policy",
                 call);
}

template <typename Call>
auto CheckedPolicy::guarded(const char* what, const char* advice, const Call& call) {
  try {
    return call();
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw Error("policy {}: {}: {}; {}", name_, what, error.what(), advice);
  } catch (...) {
    throw Error("policy {}: {} threw something that is no std::exception; {}", name_, what, advice);
  }
}

const CostModel& CheckedPolicy::costs() const {
  if (costs_ == nullptr) throw Error("asked before start()");
  return *costs_;
}

void CheckedPolicy::configure(const std::map<std::string, std::string>& options) {
  PolicyOptions given(options);
  guarded("configure", "correct --policy-option", [&] { policy_.configure(given); });
  if (given.unknown().empty()) return;
  const std::string key = given.unknown().front();
  if (given.known().empty())
    throw UsageError("--policy-option {}: policy {} has no options", key, name_);
  throw UsageError("--policy-option {}: policy {} has no such option; it has {}", key, name_,
                   fmt::join(nearest_first(key, given.known()), ", "));
}

void CheckedPolicy::start(const CostModel& costs, const Workload& workload) {
  costs_ = &costs;
  workload_ = workload;
  lacked_device_ = false;
  pipelines_ = {};
  guarded("start", [&] { policy_.start(costs, workload); });
}

void CheckedPolicy::check_host_tier(const char* option, std::optional<Tier> tier) const {
  if (!tier || costs().capacity_bytes(*tier) > 0) return;
  throw Error(
      "--{} {}: the machine has no such memory (it has {}); take another --machine, or add "
      "tiers.{} "
      "to its profile",
      option, to_string(*tier), tiers_of(costs()), to_string(*tier));
}

void CheckedPolicy::move_to_host_tiers(MemoryPlan& plan) const {
  const auto move = [](Tier& home, std::optional<Tier> tier) {
    if (tier && (home == Tier::ddr || home == Tier::cxl)) home = *tier;
  };
  for (LayerHomes& homes : plan.layers) {
    for (Tier& home : homes.weights) move(home, host_tiers_.parameters);
    move(homes.kv, host_tiers_.kv);
  }
}

MemoryPlan CheckedPolicy::plan_memory(CapacityCheck check) {
  check_host_tier("parameters-tier", host_tiers_.parameters);
  check_host_tier("kv-tier", host_tiers_.kv);
  MemoryPlan plan = guarded("plan_memory", [&] {
    MemoryPlan answer = policy_.plan_memory();
    check_homes(answer, costs());
    move_to_host_tiers(answer);
    return answer;
  });
  pipelines_ = {};
  const std::array<Pipeline, 2> pipelines = {pipeline(Phase::prefill), pipeline(Phase::decode)};
  const std::string problem =
      capacity_problem(footprint(costs(), plan, pipelines, workload_), costs(), check);
  // It says itself what would do.
  if (!problem.empty()) throw Error("policy {}: plan_memory: {}", name_, problem);
  return plan;
}

Pipeline CheckedPolicy::ask_pipeline(Phase phase) {
  const Pipeline answer = policy_.pipeline(phase);
  check_pipeline(answer, workload_);
  std::optional<Pipeline>& first = pipelines_.at(static_cast<std::size_t>(phase));
  if (!first) first = answer;
  if (answer != *first) {
    throw Error(
        "its answer for {} is another one than at first ({} mini-batches after {}); it "
        "may only change with plan_memory",
        to_string(phase), answer.mini_batches, first->mini_batches);
  }
  return answer;
}

Pipeline CheckedPolicy::pipeline(Phase phase) {
  return guarded("pipeline", [&] { return ask_pipeline(phase); });
}

Placement CheckedPolicy::place(std::int64_t layer, const BatchShape& shape,
                               const LayerHomes& homes) {
  return guarded("place", [&] {
    Placement placement = policy_.place(layer, shape, homes);
    for (const Sublayer sublayer : layer_sublayers) {
      const Device device = placement[sublayer];
      if (device > Device::cpu) {
        throw Error("layer {}'s {} is to run on device {}; Device::gpu and Device::cpu are there",
                    layer, to_string(sublayer), static_cast<int>(device));
      }
      if (costs().has(device)) continue;
      lacked_device_ = true;
      placement[sublayer] = placement[sublayer] == Device::gpu ? Device::cpu : Device::gpu;
    }
    return placement;
  });
}

IterationPlan CheckedPolicy::plan_iteration(const std::vector<RequestView>& requests,
                                            Awaited awaited) {
  return guarded("plan_iteration", [&] {
    IterationPlan plan = policy_.plan_iteration(requests);
    if (plan.sub_batches.empty() && !requests.empty() && awaited == Awaited::nothing)
      throw Error("it runs none of {} requests, and nothing else is under way", requests.size());
    check_iteration_plan(plan, requests);
    check_prompts(plan, requests, ask_pipeline(Phase::prefill).requests_at_once);
    return plan;
  });
}

}  // namespace sluice
