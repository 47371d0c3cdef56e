#include "engine/run/run_setup.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "base/numa.h"
#include "base/units.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/compute.h"
#include "engine/machine/gemm_schedule_store.h"
#include "engine/plan/what_if.h"
#include "schedulers/crash_guard.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

MachineCosts costs_of(const RunDemand& demand, const HostPlan& host,
                      const Accelerator& accelerator) {
  return run_costs(model_dimensions(demand.model.config, demand.dtype),
                   {.dtype = demand.dtype,
                    .threads = demand.cpu.num_threads(),
                    .cpu_plan = demand.cpu.cut_text(),
                    .cxl = cxl_memory(host, demand.tiers)},
                   accelerator);
}

/// That run together at most; of one phase.
std::int64_t sequences_at_once(const RunDemand& demand, std::optional<Phase> phase = std::nullopt) {
  std::int64_t most = 1;
  for (const IterationSize& iteration : demand.iterations) {
    if (!phase || iteration.phase == *phase) most = std::max(most, iteration.sequences);
  }
  return most;
}

/// Tokens that one chain of an iteration's tasks computes; prompts and others may be mixed.
std::int64_t rows_of_chain(const RunDemand& demand, const MiniBatches& prefill,
                           const MiniBatches& decode) {
  std::int64_t most = 1;
  for (const auto& [phase, sequences, rows] : demand.iterations) {
    const MiniBatches& cut = phase == Phase::prefill ? prefill : decode;
    most = std::max(most, cut.most_rows(sequences, rows));
  }
  return most;
}

/// Of all cohorts together.
std::int64_t most_pages(const KvPages& kv) {
  return std::max(kv.all, kv.hbm.value_or(0) + kv.ddr.value_or(0));
}

/// With what the kernels need for such a part of the prompts, or for all sequences' next tokens.
Accelerator sized_for_parts(const RunDemand& demand, std::int64_t prefill_parts) {
  const std::int64_t sequences = sequences_at_once(demand);
  const MiniBatches prefill = {.asked = prefill_parts,
                               .enough_rows = MiniBatches::enough_rows_of_prompts(true)};
  return demand.accelerator.sized_for(demand.model.config, demand.dtype,
                                      {.rows = rows_of_chain(demand, prefill, {}),
                                       .logit_rows = sequences,
                                       .sequences = sequences,
                                       .context_tokens = most_pages(demand.kv) * page_tokens});
}

RunSize size_of(const RunDemand& demand, const PolicyRun& policy) {
  RunSize size{.config = demand.model.config,
               .dtype = demand.dtype,
               .table_bytes = demand.need.table_bytes,
               .kv = {},
               .max_rows = rows_of_chain(demand, policy.mini_batches(Phase::prefill),
                                         policy.mini_batches(Phase::decode)),
               .max_logit_rows = sequences_at_once(demand)};
  if (demand.one_cohort) {
    size.kv.push_back({policy.kv_homes(), demand.kv.all});
    return size;
  }
  for (const KvCohort& cohort : policy.kv_cohorts())
    size.kv.push_back({cohort.homes, cohort.pages});
  return size;
}

}  // namespace

RunPlan::RunPlan(RunDemand demand, HostPlan host, RunPolicy& policy, std::int64_t prefill_parts)
    : demand_(std::move(demand)),
      host_(std::move(host)),
      accelerator_(sized_for_parts(demand_, prefill_parts)),
      costs_(costs_of(demand_, host_, accelerator_)),
      policy_(policy.settle(*costs_.model, demand_.workload, demand_.tiers)) {
  if (accelerator_) {
    accelerated_.emplace(accelerator_, policy_, *costs_.model, demand_.workload, demand_.tiers);
    host_ = accelerated_->beside(std::move(host_), demand_.tiers, demand_.smaller, demand_.kv);
  }
  policy_run_.emplace(policy_.policy(), *costs_.model, demand_.workload, demand_.kv);
  if (accelerated_)
    policy_run_->check_as_planned(accelerated_->plan().memory, accelerated_->plan().workload);
  policy_run_->set_host_homes(host_.homes().layers, demand_.tiers.kv_tier);
  if (policy_run_->mini_batches(Phase::prefill).asked < prefill_parts)
    policy_run_->cut_prefill(prefill_parts);
  size_ = size_of(demand_, *policy_run_);
  if (accelerated_) hbm_ = accelerated_->check(size_);
}

namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// A policy may have lost this much of its speed to the memory that kernels need for many rows.
constexpr double acceptable_loss = 1.02;

/// What counts of a plan when its parts are chosen.
struct Trial {
  double latency_s = 0;
  std::int64_t parts = 1;  ///< as many as were asked for, or the policy's
};

/// Throws Error when the run does not fit.
Trial try_parts(const RunDemand& demand, const HostPlan& host, RunPolicy& policy,
                std::int64_t prefill_parts) {
  const RunPlan plan(demand, host, policy, prefill_parts);
  return {.latency_s = plan.accelerated()->plan().latency_s(),
          .parts = plan.policy_run().mini_batches(Phase::prefill).asked};
}

/// The fewest mini-batches of prompts that fit and leave the policy as much memory as makes it no
/// slower than with the most; where the policy itself has more, as many. Throws Error where none
/// fit.
std::int64_t choose_parts(const RunDemand& demand, const HostPlan& host, RunPolicy& policy) {
  const std::int64_t most = sequences_at_once(demand, Phase::prefill);
  const Trial finest = try_parts(demand, host, policy, most);
  const auto good = [&](std::int64_t parts) -> std::optional<Trial> {
    if (parts == most) return finest;
    try {
      const Trial trial = try_parts(demand, host, policy, parts);
      if (trial.latency_s <= acceptable_loss * finest.latency_s) return trial;
    } catch (const Error&) {
    }
    return std::nullopt;
  };
  std::int64_t too_few = 0;
  std::int64_t enough = 1;
  std::optional<Trial> chosen;
  for (; !(chosen = good(enough)); enough = std::min(2 * enough, most)) too_few = enough;
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    const std::optional<Trial> trial = good(middle);
    (trial ? enough : too_few) = middle;
    if (trial) chosen = trial;
  }
  return chosen->parts > enough && good(chosen->parts) ? chosen->parts : enough;
}

/// Memory of the accelerator with which the run fits, while it does not with a MiB less; nothing if
/// all of it is too little. A policy that puts more into more memory may not fit in between.
std::optional<std::uint64_t> enough_accelerator_bytes(const RunDemand& demand, const HostPlan& host,
                                                      RunPolicy& policy) {
  const std::uint64_t most_mib = demand.accelerator.most_bytes() / mebibyte;
  const auto fits = [&](std::uint64_t mib) {
    RunDemand other = demand;
    other.accelerator.memory_bytes = mib * mebibyte;
    try {
      try_parts(other, host, policy, sequences_at_once(demand, Phase::prefill));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::uint64_t too_few = demand.accelerator.memory_bytes / mebibyte;
  if (too_few >= most_mib) return std::nullopt;
  std::uint64_t enough = std::clamp<std::uint64_t>(2 * too_few, 1, most_mib);
  for (; !fits(enough); enough = std::min(2 * enough, most_mib)) {
    if (enough == most_mib) return std::nullopt;
    too_few = enough;
  }
  while (enough - too_few > 1) {
    const std::uint64_t middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  return enough * mebibyte;
}

}  // namespace

RunPlan plan_run(const RunDemand& demand, const HostPlan& host, RunPolicy& policy) {
  if (!demand.accelerator) return {demand, host, policy};
  std::string problem;
  try {
    return {demand, host, policy, choose_parts(demand, host, policy)};
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    problem = error.what();
  }
  const auto enough = enough_accelerator_bytes(demand, host, policy);
  if (!enough) throw Error("{}", problem);
  throw Error("{}; {} would do", problem, demand.accelerator.option_for(*enough));
}

std::int64_t RunPlan::prefill_mini_batches() const {
  std::size_t most = 1;
  for (const auto& [phase, sequences, rows] : demand_.iterations) {
    if (phase != Phase::prefill) continue;
    const std::vector<std::int64_t> each(static_cast<std::size_t>(sequences), rows);
    most = std::max(most, policy_run_->mini_batches(phase).cut(each, std::identity()).size());
  }
  return static_cast<std::int64_t>(most);
}

std::string RunPlan::slower_than_one_device() const {
  return accelerated_ ? sluice::slower_than_one_device(accelerated_->plan(), *costs_.model) : "";
}

std::vector<TierUse> RunPlan::uses() const {
  std::vector<TierUse> uses;
  if (hbm_) uses.push_back(*hbm_);
  std::ranges::copy(tier_uses(host_, demand_.tiers), std::back_inserter(uses));
  return uses;
}

void RunPlan::check_disk() const {
  if (host_.uses_disk())
    DiskRun::check_room(host_, *demand_.tiers.disk, demand_.model, demand_.dtype,
                        size_.kv_file_bytes());
}

namespace {

/// Where weights lie, with the CPU plan's part in it. Throws Error when a node has no room for what
/// is bound to it.
WeightHomes with_parts(WeightHomes homes, const RunDemand& demand, std::uint64_t ddr_bytes) {
  if (homes.ddr_nodes.size() < 2) return homes;
  homes.ddr_shares = demand.cpu.node_shares();
  std::map<int, double> share_of;
  for (const NodeShare& part : homes.ddr_shares) share_of[part.node] += part.share;
  for (const auto& [node, share] : share_of) {
    const auto bytes = static_cast<std::uint64_t>(share * static_cast<double>(ddr_bytes));
    const std::uint64_t free_bytes = free_node_bytes(node);
    if (bytes > free_bytes)
      throw Error(
          "not enough memory: the CPU plan puts {} of weights on NUMA node {}, which has {} free; "
          "use --cpu-plan interleaved, or a plan that gives this node a smaller share",
          format_bytes(bytes), node, format_bytes(free_bytes));
  }
  return homes;
}

}  // namespace

LoadedRun::LoadedRun(RunPlan& plan)
    : plan_(plan),
      tuned_gemm_shapes_(follow_kept_gemm_schedules(plan.demand().dtype, plan.demand().cpu)) {
  const RunDemand& demand = plan.demand();
  if (plan.host().uses_disk()) {
    disk_.emplace(plan.host(), *demand.tiers.disk, demand.model, demand.dtype,
                  plan.size().kv_file_bytes(), plan.policy(),
                  plan.accelerated() != nullptr ? plan.accelerated()->staging() : Staging{});
  }
  const WeightHomes homes =
      with_parts(disk_ ? disk_->homes() : plan.host().homes(), demand, plan.host().ddr().weights);
  runtime_.emplace(plan.accelerator().runtime_options(
      {.cores = demand.cpu.cores,
       .groups = demand.cpu.groups(),
       .scheduler = plan.policy().scheduler(),
       .gpu_launches =
           demand.timed ? GpuWorker::Launches::timed : GpuWorker::Launches::in_graphs}));
  CrashGuard::stay_in_charge();
  if (disk_) disk_->attach();
  costs_in_use_.emplace(*plan.costs().model);
  const Clock::time_point start = Clock::now();
  ProgressBar bar("packing weights");
  model_.emplace(
      demand.model, demand.dtype, runtime_->setup_pool(),
      [&](std::uint64_t done, std::uint64_t total) {
        if (interrupt_flag()) throw Interrupted();
        bar.update(static_cast<double>(done), static_cast<double>(total), format_bytes(done));
      },
      homes);
  bar.clear();
  load_s_ = std::chrono::duration<double>(Clock::now() - start).count();
  for (const RunSize::Kv& cohort : plan.size().kv) {
    kv_.emplace_back(model_->shape(), demand.model.config.num_layers, cohort.num_pages,
                     cohort.homes,
                     KvPlaces{.cxl_nodes = plan.host().homes().cxl_nodes,
                              .ddr_nodes = plan.host().homes().ddr_nodes,
                              .ddr_shares = homes.ddr_shares,
                              .file = disk_ ? disk_->kv_file() : nullptr});
    kv_.back().place_by_heads(runtime_->setup_pool());
  }
  if (plan.accelerated() != nullptr)
    residence_ = plan.accelerated()->bring(*runtime_, *model_, kv_, plan.size());
}

std::string LoadedRun::summary() const {
  std::string lines;
  if (plan_.accelerated() != nullptr) lines += plan_.accelerated()->summary(*runtime_) + "\n";
  if (disk_) lines += disk_->summary() + "\n";
  return lines;
}

}  // namespace sluice
