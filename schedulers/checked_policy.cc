#include "schedulers/checked_policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/text.h"
#include "base/units.h"
#include "perfmodels/hot_experts.h"
#include "schedulers/crash_guard.h"

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
  if (tier > Tier::disk)
    throw Error("{} is to live in tier {}, which is no Tier", what, static_cast<int>(tier));
  if (costs.capacity_bytes(tier) > 0) return;
  throw Error("{} is to live in {}, which this machine does not have (it has {})", what,
              to_string(tier), tiers_of(costs));
}

/// Of one layer.
void check_hot_experts(const std::vector<std::int32_t>& experts, std::size_t layer,
                       const ModelDimensions& model) {
  std::set<std::int32_t> seen;
  for (const std::int32_t expert : experts) {
    if (expert < 0 || expert >= model.num_experts)
      throw Error("hot_experts of layer {} has expert {}; the model has 0 to {}", layer, expert,
                  model.num_experts - 1);
    if (!seen.insert(expert).second)
      throw Error("hot_experts of layer {} has expert {} twice; name it once", layer, expert);
  }
}

void check_hot_experts(const MemoryPlan& plan, const CostModel& costs) {
  if (plan.hot_experts.empty()) return;
  const ModelDimensions& model = costs.model();
  if (model.num_experts == 0)
    throw Error("it has hot_experts, and the model has no experts; leave them out");
  if (plan.hot_experts.size() != plan.layers.size())
    throw Error("it gives hot_experts of {} layers, the model has {}", plan.hot_experts.size(),
                plan.layers.size());
  if (!plan.uses_gpu || costs.capacity_bytes(Tier::hbm) == 0)
    throw Error("it has hot_experts, and {}",
                plan.uses_gpu ? "this machine has no hbm" : "uses_gpu is false");
  for (std::size_t layer = 0; layer < plan.hot_experts.size(); ++layer)
    check_hot_experts(plan.hot_experts[layer], layer, model);
}

void check_homes(const MemoryPlan& plan, const CostModel& costs) {
  if (plan.hbm_requests < 0)
    throw Error("hbm_requests is {}; 0 or more are possible", plan.hbm_requests);
  if (plan.hbm_requests > 0 && costs.capacity_bytes(Tier::hbm) == 0)
    throw Error("hbm_requests is {}, and this machine has no hbm (it has {})", plan.hbm_requests,
                tiers_of(costs));
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
  check_hot_experts(plan, costs);
}

void check_iteration_plan(const IterationPlan& plan, const std::vector<RequestView>& requests) {
  std::vector<std::int64_t> known;
  known.reserve(requests.size());
  for (const RequestView& request : requests) known.push_back(request.id);
  std::sort(known.begin(), known.end());
  std::vector<bool> seen(known.size());
  const auto number_of = [&](std::int64_t id) -> std::optional<std::size_t> {
    const auto at = std::lower_bound(known.begin(), known.end(), id);
    if (at == known.end() || *at != id) return std::nullopt;
    return static_cast<std::size_t>(at - known.begin());
  };
  for (std::size_t i = 0; i < plan.sub_batches.size(); ++i) {
    const SubBatchPlan& sub_batch = plan.sub_batches[i];
    if (sub_batch.requests.empty()) throw Error("sub-batch {} is empty; leave it out", i);
    for (const std::int64_t id : sub_batch.requests) {
      const std::optional<std::size_t> number = number_of(id);
      if (!number) {
        throw Error("sub-batch {} has request {}, which is none of the {} that it was given", i, id,
                    requests.size());
      }
      if (seen[*number])
        throw Error("request {} is there twice; a request runs once an iteration", id);
      seen[*number] = true;
    }
  }
}

/// Answers to one Situation, looked at order by order.
class ScheduleCheck {
 public:
  explicit ScheduleCheck(const Situation& situation) : situation_(situation) {
    for (const RequestView& request : situation.waiting) requests_[request.id] = {&request, false};
    for (const RequestView& request : situation.running) requests_[request.id] = {&request, true};
  }

  void check(const Schedule& schedule) {
    for (const std::int64_t id : schedule.preemptions) {
      Request& request = running(id, "preempts");
      request.runs = false;
      request.gone = true;
    }
    for (const Swap& swap : schedule.swaps) {
      Request& request = running(swap.request, "swaps");
      if (std::exchange(request.swapped, true))
        throw Error("it swaps request {} twice; once an iteration is possible", swap.request);
      if (request.view->kv == swap.to)
        throw Error("it swaps request {} to {}, where it is", swap.request, to_string(swap.to));
      check_pool(swap.to, "swaps", swap.request);
    }
    const auto free =
        situation_.free_sequences + static_cast<std::int64_t>(schedule.preemptions.size());
    if (std::ssize(schedule.admissions) > free)
      throw Error("it admits {} requests; {} more can run", schedule.admissions.size(), free);
    for (const Admission& admission : schedule.admissions) {
      Request& request = known(admission.request, "admits");
      if (request.runs || request.gone)
        throw Error("it admits request {}, which does not wait", admission.request);
      request.runs = true;
      check_pool(admission.kv, "admits", admission.request);
    }
    check(schedule.sub_batches);
  }

 private:
  struct Request {
    const RequestView* view = nullptr;
    bool runs = false;
    bool gone = false;  ///< it was preempted
    bool swapped = false;
    bool scheduled = false;
  };

  void check(const std::vector<std::vector<Share>>& sub_batches) {
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < sub_batches.size(); ++i) {
      if (sub_batches[i].empty()) throw Error("sub-batch {} is empty; leave it out", i);
      for (const Share& share : sub_batches[i]) {
        Request& request = running(share.request, "runs");
        if (std::exchange(request.scheduled, true))
          throw Error("request {} is there twice; a request runs once an iteration", share.request);
        const std::int64_t most = std::min(share.rows, situation_.prefill_chunk_tokens);
        if (share.rows < 1 || request.view->rows_within(most) != share.rows)
          throw Error("request {} is to compute {} rows; possible are {}", share.request,
                      share.rows, possible_rows(*request.view));
        rows += share.rows;
      }
    }
    if (rows > situation_.max_batch_tokens)
      throw Error("its sub-batches have {} rows; {} are possible", rows,
                  situation_.max_batch_tokens);
  }
  Request& known(std::int64_t id, const char* does) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) return found->second;
    throw Error("it {} request {}, which is none of the {} that it was given", does, id,
                requests_.size());
  }
  Request& running(std::int64_t id, const char* does) {
    Request& request = known(id, does);
    if (request.gone) throw Error("it {} request {}, and preempts it besides", does, id);
    if (!request.runs) throw Error("it {} request {}, which waits", does, id);
    return request;
  }
  void check_pool(Tier tier, const char* does, std::int64_t id) const {
    const auto is_of = [tier](const PoolView& pool) { return pool.tier == tier; };
    if (!std::ranges::any_of(situation_.pools, is_of))
      throw Error("it {} request {} to {}, where there is no KV pool; there is one in {}", does, id,
                  tier <= Tier::disk ? std::string(to_string(tier))
                                     : fmt::format("tier {}", static_cast<int>(tier)),
                  pools());
  }
  std::string pools() const {
    std::vector<std::string_view> names;
    for (const PoolView& pool : situation_.pools) names.push_back(to_string(pool.tier));
    return fmt::format("{}", fmt::join(names, " and "));
  }
  /// What a request can bring to an iteration, in words.
  std::string possible_rows(const RequestView& view) const {
    if (view.prompt_tokens_left == 0) return "1";
    const std::int64_t most =
        std::min(situation_.prefill_chunk_tokens, situation_.max_batch_tokens);
    const std::int64_t of_prompt = view.prompt_tokens_left - view.drawn_tokens_left;
    if (of_prompt == 0) return fmt::format("1 to {}", view.rows_within(most));
    std::vector<std::string> choices;
    const std::int64_t piece = std::min(most, of_prompt - fewest_prompt_rows);
    if (piece >= fewest_prompt_rows)
      choices.push_back(fmt::format("{} to {}", fewest_prompt_rows, piece));
    if (of_prompt <= most) choices.push_back(fmt::format("{}", of_prompt));
    return choices.empty() ? "none" : fmt::format("{}", fmt::join(choices, ", or "));
  }

  const Situation& situation_;
  std::unordered_map<std::int64_t, Request> requests_;
};

/// Of a phase at most so many, if its pipeline says so.
void check_count(const IterationPlan& plan, const std::vector<RequestView>& requests, Phase phase,
                 std::int64_t at_once) {
  if (at_once == 0) return;
  std::set<std::int64_t> of_phase;
  for (const RequestView& request : requests) {
    if ((request.prompt_tokens_left > 0) == (phase == Phase::prefill)) of_phase.insert(request.id);
  }
  std::int64_t count = 0;
  for (const SubBatchPlan& sub_batch : plan.sub_batches) {
    for (const std::int64_t id : sub_batch.requests) count += of_phase.contains(id) ? 1 : 0;
  }
  if (count > at_once)
    throw Error("it runs {} requests of {}, though its pipeline says {} at once", count,
                to_string(phase), at_once);
}

void check_pipeline(const Pipeline& pipeline, const Workload& workload) {
  if (pipeline.mini_batches < 1 || pipeline.mini_batches > workload.batch)
    throw Error("{} mini-batches for a batch of {}; 1 to {} are possible", pipeline.mini_batches,
                workload.batch, workload.batch);
  if (pipeline.prefetch > Prefetch::layer)
    throw Error("its prefetch is {}, which is no Prefetch", static_cast<int>(pipeline.prefetch));
  if (pipeline.requests_at_once < 0)
    throw Error("requests_at_once is {}; 0, for all, or more are possible",
                pipeline.requests_at_once);
}

/// What of it is another than at first.
std::string change_of(const Pipeline& answer, const Pipeline& first) {
  if (answer.mini_batches != first.mini_batches)
    return fmt::format("{} mini-batches after {}", answer.mini_batches, first.mini_batches);
  if (answer.prefetch != first.prefetch)
    return fmt::format("prefetch {} after {}", static_cast<int>(answer.prefetch),
                       static_cast<int>(first.prefetch));
  return fmt::format("requests_at_once {} after {}", answer.requests_at_once,
                     first.requests_at_once);
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

std::string thrown_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    const char* text = error.what();
    const bool says_something = text != nullptr && *text != '\0';
    return says_something ? one_line(text) : "it threw an exception without a text";
  } catch (...) {
    return "it threw something that is no std::exception";
  }
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
  const CrashGuard guard({"policy ", name_, ": ", what, ": it crashed; ", advice});
  try {
    return call();
  } catch (...) {
    throw Error("policy {}: {}: {}; {}", name_, what, thrown_text(), advice);
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
  uses_gpu_ = true;
  pipelines_ = {};
  policy_.take_costs_away();
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

namespace {

/// A chunk of experts, gate, fc1 and fc2 of each, is one piece of data: it lives where the slower
/// one of the two answers says.
void join_homes_of_experts(MemoryPlan& plan) {
  for (LayerHomes& homes : plan.layers) {
    Tier& fc1 = homes[WeightKind::fc1];
    Tier& fc2 = homes[WeightKind::fc2];
    fc1 = fc2 = std::max(fc1, fc2);
  }
}

}  // namespace

MemoryPlan CheckedPolicy::plan_memory(CapacityCheck check) {
  check_host_tier("parameters-tier", host_tiers_.parameters);
  check_host_tier("kv-tier", host_tiers_.kv);
  MemoryPlan plan = guarded("plan_memory", [&] {
    MemoryPlan answer = policy_.plan_memory();
    check_homes(answer, costs());
    uses_gpu_ = answer.uses_gpu;
    check_tables(answer);
    move_to_host_tiers(answer);
    if (costs().model().num_experts > 0) join_homes_of_experts(answer);
    count_hot_experts(costs().model(), answer);
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
        "its answer for {} is another one than at first ({}); it may only change with plan_memory",
        to_string(phase), change_of(answer, *first));
  }
  return answer;
}

Pipeline CheckedPolicy::pipeline(Phase phase) {
  return guarded("pipeline", [&] { return ask_pipeline(phase); });
}

template <typename What>
Device CheckedPolicy::check_device(Device device, const What& what) {
  if (device > Device::cpu)
    throw Error("{} is to run on device {}; Device::gpu and Device::cpu are there", what(),
                static_cast<int>(device));
  if (!costs().has(device)) {
    lacked_device_ = true;
    return device == Device::gpu ? Device::cpu : Device::gpu;
  }
  if (device == Device::gpu && !uses_gpu_)
    throw Error("{} is to run on the GPU, though plan_memory says that uses_gpu is false", what());
  return device;
}

/// The embedding, and the LM head.
void CheckedPolicy::check_tables(MemoryPlan& plan) {
  const auto check_home = [&](Tier home, const char* what) {
    if (home == Tier::hbm && !plan.uses_gpu)
      throw Error("{} is to live in hbm, though uses_gpu is false", what);
  };
  check_home(plan.embedding, "the embedding");
  check_home(plan.lm_head, "the LM head");
  if (plan.lm_head_device)
    plan.lm_head_device = check_device(*plan.lm_head_device, [] { return "the LM head"; });
}

Placement CheckedPolicy::place(std::int64_t layer, const BatchShape& shape,
                               const LayerHomes& homes) {
  return guarded("place", [&] {
    Placement placement = policy_.place(layer, shape, homes);
    for (const Sublayer sublayer : layer_sublayers) {
      Device& device = placement[sublayer];
      device = check_device(
          device, [&] { return fmt::format("layer {}'s {}", layer, to_string(sublayer)); });
    }
    if (costs_ != nullptr && !can_place(costs_->model(), placement)) {
      throw Error(
          "layer {}'s placement is {}: the model has experts, which run whole, so that p5 and p6 "
          "must be the same",
          layer, placement.to_string());
    }
    return placement;
  });
}

std::optional<Schedule> CheckedPolicy::schedule(const Situation& situation) {
  return guarded("schedule", [&] {
    std::optional<Schedule> schedule = policy_.schedule(situation);
    if (!schedule) return schedule;
    if (schedule->sub_batches.empty() && !situation.under_way)
      throw Error("it runs none of {} requests, and nothing else is under way",
                  situation.running.size() + situation.waiting.size());
    ScheduleCheck(situation).check(*schedule);
    return schedule;
  });
}

IterationPlan CheckedPolicy::plan_iteration(const std::vector<RequestView>& requests,
                                            Awaited awaited) {
  const std::array<Pipeline, 2> pipelines = {pipeline(Phase::prefill), pipeline(Phase::decode)};
  return guarded("plan_iteration", [&] {
    IterationPlan plan = policy_.plan_iteration(requests);
    if (plan.sub_batches.empty() && !requests.empty() && awaited == Awaited::nothing)
      throw Error("it runs none of {} requests, and nothing else is under way", requests.size());
    check_iteration_plan(plan, requests);
    for (const Phase phase : {Phase::prefill, Phase::decode})
      check_count(plan, requests, phase,
                  pipelines.at(static_cast<std::size_t>(phase)).requests_at_once);
    return plan;
  });
}

}  // namespace sluice
