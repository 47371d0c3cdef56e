#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codelets/runtime/runtime.h"
#include "engine/batching/policy_run.h"
#include "engine/machine/accelerator.h"
#include "engine/plan/planner.h"
#include "engine/run/tiers.h"
#include "graphs/kv_cache.h"
#include "graphs/resident_weights.h"
#include "schedulers/loader.h"

namespace sluice {

/// How much a run computes and keeps, as known before anything is loaded.
struct RunSize {
  /// KV of one cohort.
  struct Kv {
    std::vector<Tier> homes;  ///< of each layer
    std::int64_t num_pages = 0;
  };
  /// Of a model that is loaded already.
  static RunSize of(const ModelWeights& model, std::span<const KvCache> caches,
                    std::int64_t max_rows, std::int64_t max_logit_rows);

  /// Bytes of a file for the KV that lives on a disk.
  std::uint64_t kv_file_bytes() const;

  ModelConfig config;
  DType dtype = DType::bf16;
  std::uint64_t table_bytes = 0;  ///< embedding and positions, as stored
  std::vector<Kv> kv;
  std::int64_t max_rows = 0;        ///< tokens that one chain of an iteration's tasks computes
  std::int64_t max_logit_rows = 0;  ///< that an iteration draws tokens for
};

/// What a run on the CPU and an accelerator has beyond one on the CPU alone: a plan that is kept
/// to, and weights that stay in the accelerator's memory.
class AcceleratorRun {
 public:
  /// Plans, and tells the policy's scheduler how much may be on its way, staging(); before StarPU
  /// starts.
  /// Throws Error when the plan does not fit, or is of a kind that only `plan` knows.
  AcceleratorRun(const Accelerator& accelerator, LoadedPolicy& policy, const CostModel& costs,
                 const Workload& workload, const TierSettings& tiers);

  const Plan& plan() const { return plan_; }
  const Staging& staging() const { return staging_; }
  /// The host's plan beside what this one takes. Throws Error when it does not fit; `smaller`: what
  /// would, see shortage_text().
  HostPlan beside(HostPlan host, const TierSettings& settings, const std::string& smaller,
                  const KvPages& kv) const;

  /// What is held in the accelerator's memory, and what is pinned for it, for as long as it lives.
  struct Residence {
    PinnedMemory pinned;
    std::unique_ptr<ResidentWeights> weights;
  };
  /// What it takes of the accelerator's memory. Throws Error with the sizes when it does not fit.
  TierUse check(const RunSize& size) const;
  /// Checks that everything fits beside what StarPU itself has taken, and brings there what stays.
  /// Throws Error with the sizes when it does not fit.
  std::unique_ptr<Residence> bring(Runtime& runtime, const ModelWeights& model,
                                   std::span<const KvCache> caches, const RunSize& size) const;

  /// "NVIDIA H200 with 20.0 GiB: peak ..., ... moved to it, ... from it"
  std::string summary(const Runtime& runtime) const;
  std::int64_t resident_layers() const { return plan_.memory.resident_layers(); }
  /// Of `stats`: `device`, and `peak_bytes` of HBM.
  void add_to(nlohmann::json& stats, const Runtime& runtime) const;

 private:
  struct Need;
  Need need_of(const RunSize& size) const;
  /// `advice` ends the message.
  void check_fits(const Need& need, std::uint64_t there_bytes, const std::string& advice) const;
  /// Whether it holds for some layers of a phase, wherever their weights may live.
  bool any_group(const std::function<bool(const LayerHomes&, const Placement&)>& is) const;
  bool reads_kv_from_elsewhere() const;
  bool splits_attention() const;
  void check_sendable(std::uint64_t bytes, const char* what) const;
  Accelerator accelerator_;
  /// The same with the host's weights in DDR, where some of them are in CXL memory: a layer's
  /// placement goes by its own home.
  std::optional<Plan> in_ddr_;
  Plan plan_;
  Staging staging_;
};

}  // namespace sluice
