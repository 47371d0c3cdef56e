#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "codelets/runtime/runtime.h"
#include "engine/command_line.h"
#include "engine/planner.h"
#include "engine/policy_run.h"
#include "graphs/resident_weights.h"
#include "schedulers/loader.h"

namespace sluice {

/// --device.
void declare_device_option(CommandLine& line);
/// Memory of the stand-in accelerator that --device asks for; 0: none. Throws UsageError.
std::uint64_t read_device(const CommandLine& line);

/// "stand-in accelerator (a second process, for tests) of 64.0 MiB"
std::string stand_in_name(std::uint64_t memory_bytes);

/// What a run on the CPU and a stand-in accelerator has beyond one on the CPU alone: a plan that is
/// kept to, and weights that stay in the accelerator's memory.
class StandInRun {
 public:
  /// Plans, and tells the policy's scheduler how much may be on its way; before StarPU starts.
  /// Throws Error when the plan does not fit, or is of a kind that only `plan` knows.
  StandInRun(LoadedPolicy& policy, const CostModel& costs, const Workload& workload);

  /// Checks that everything fits the accelerator's memory at its real size, and brings there what
  /// stays, for as long as the result lives. `max_rows`: tokens that one iteration computes,
  /// `max_logit_rows`: logits of them. Throws Error with the sizes when it does not fit.
  std::unique_ptr<ResidentWeights> bring(const Runtime& runtime, const LoadedModel& model,
                                         std::span<const KvCache> caches, std::int64_t max_rows,
                                         std::int64_t max_logit_rows) const;

  /// "stand-in accelerator ...: peak ..., ... moved to it, ... from it"
  std::string summary(const Runtime& runtime);
  /// Of `stats`: `device`, and `peak_bytes` of HBM.
  void add_to(nlohmann::json& stats, const Runtime& runtime);

 private:
  struct Need;
  /// All but `resident`.
  Need need_of(const LoadedModel& model, std::span<const KvCache> caches, std::int64_t max_rows,
               std::int64_t max_logit_rows) const;
  bool reads_kv_from_elsewhere() const;
  const StandInUse& use(const Runtime& runtime);

  Plan plan_;
  std::optional<StandInUse> use_;
};

}  // namespace sluice
