#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codelets/runtime/task_model.h"
#include "engine/batching/mini_batches.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "engine/run/device.h"
#include "engine/run/run_policy.h"
#include "engine/run/tiers.h"
#include "graphs/kv_cache.h"
#include "graphs/loaded_model.h"

namespace sluice {

/// What a command wants to run, as large as it gets. Model and tiers outlive the plan.
struct RunDemand {
  const Model& model;
  DType dtype = DType::bf16;
  CpuUse cpu;
  const TierSettings& tiers;
  Accelerator accelerator;
  Workload workload;
  HostNeed need;
  std::vector<IterationSize> iterations;
  KvPages kv;
  /// One KV cache for all requests, whatever the policy says of the first ones'.
  bool one_cohort = false;
  bool timed = false;   ///< a GPU's kernels, too; else they may be launched as graphs
  std::string smaller;  ///< what would need less memory: see shortage_text()
};

/// A run that fits, before anything is loaded: who decides, by which costs, and what lives where.
class RunPlan {
 public:
  /// `host` is the plan without the accelerator. Prompts are cut into `prefill_parts` mini-batches
  /// or more, which a GPU's kernels need less memory for. Throws Error when the run does not fit
  /// beside it; plan_run() says besides what would.
  RunPlan(RunDemand demand, HostPlan host, RunPolicy& policy, std::int64_t prefill_parts = 1);
  RunPlan(const RunPlan&) = delete;
  RunPlan& operator=(const RunPlan&) = delete;

  const RunDemand& demand() const { return demand_; }
  const HostPlan& host() const { return host_; }
  const MachineCosts& costs() const { return costs_; }
  LoadedPolicy& policy() { return policy_; }
  PolicyRun& policy_run() { return *policy_run_; }
  const PolicyRun& policy_run() const { return *policy_run_; }
  const Accelerator& accelerator() const { return accelerator_; }
  /// Null without one.
  const AcceleratorRun* accelerated() const { return accelerated_ ? &*accelerated_ : nullptr; }
  const RunSize& size() const { return size_; }
  /// Of the most prompts at once.
  std::int64_t prefill_mini_batches() const;
  /// Empty, or a line that one device alone is faster by the cost model than this plan.
  std::string slower_than_one_device() const;
  /// What --dry-run prints: every tier, HBM first.
  std::vector<TierUse> uses() const;
  /// Throws Error when the disk has no room for the files that the run would write there.
  void check_disk() const;

 private:
  RunDemand demand_;
  HostPlan host_;
  Accelerator accelerator_;
  MachineCosts costs_;
  LoadedPolicy& policy_;
  std::optional<AcceleratorRun> accelerated_;
  std::optional<PolicyRun> policy_run_;
  RunSize size_;
  std::optional<TierUse> hbm_;
};

/// The plan of a run. Values take more of an accelerator's memory than in a policy's plan, which
/// has two bytes for each, and a GPU's kernels need some that no policy knows: prompts are cut into
/// as few mini-batches as fit and leave the policy what it needs. Throws Error when it does not
/// fit; where an accelerator with more memory would do, with a setting that does while a MiB less
/// does not.
RunPlan plan_run(const RunDemand& demand, const HostPlan& host, RunPolicy& policy);

/// The same with StarPU started, weights loaded and memory for KV.
class LoadedRun {
 public:
  /// The plan outlives it. Shows a bar while it loads. Throws Error, and Interrupted.
  explicit LoadedRun(RunPlan& plan);
  LoadedRun(const LoadedRun&) = delete;
  LoadedRun& operator=(const LoadedRun&) = delete;

  Runtime& runtime() { return *runtime_; }
  const Runtime& runtime() const { return *runtime_; }
  LoadedModel& model() { return *model_; }
  const LoadedModel& model() const { return *model_; }
  std::vector<KvCache>& kv() { return kv_; }
  /// Null when nothing lives on one.
  const DiskRun* disk() const { return disk_ ? &*disk_ : nullptr; }
  double load_s() const { return load_s_; }
  /// Shapes of products that follow what `sluice tune --kernels` has found.
  std::int64_t tuned_gemm_shapes() const { return tuned_gemm_shapes_; }
  /// A line on the accelerator, and one on the disk, where there are such.
  std::string summary() const;

 private:
  const RunPlan& plan_;
  std::int64_t tuned_gemm_shapes_;
  std::optional<DiskRun> disk_;  ///< longer than StarPU
  std::optional<Runtime> runtime_;
  std::optional<CostsInUse> costs_in_use_;
  std::optional<LoadedModel> model_;
  double load_s_ = 0;
  std::vector<KvCache> kv_;
  std::unique_ptr<AcceleratorRun::Residence> residence_;
};

}  // namespace sluice
