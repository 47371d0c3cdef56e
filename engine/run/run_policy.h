#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/run/tiers.h"
#include "schedulers/loader.h"

namespace sluice {

/// The policy that a run is asked to have.
struct PolicySettings {
  std::optional<std::string> name;             ///< or its file; nothing: the best known one
  std::map<std::string, std::string> options;  ///< by key; only beside a name
};

/// The policy of a run: the one that is asked for, else the best known one.
class RunPolicy {
 public:
  /// Loads what is asked for, so that mistakes show before anything else is done. Throws UsageError
  /// or Error: see LoadedPolicy.
  explicit RunPolicy(const PolicySettings& settings);

  /// The policy, with its weights where `tiers` have them. If none was asked for: cpu-only where
  /// there is no GPU, else the fastest that fits; beside a disk, whatever it takes of the host's
  /// memory. Throws Error when none does. What an earlier call gave ends if none was asked for.
  LoadedPolicy& settle(const CostModel& costs, const Workload& workload, const TierSettings& tiers);

  /// "lia" and why, in one line, after settle().
  std::string describe() const;

 private:
  void choose(const CostModel& costs, const Workload& workload, const TierSettings& tiers);

  bool asked_for_ = false;
  std::unique_ptr<LoadedPolicy> policy_;
  std::string reason_ = "asked for";
};

}  // namespace sluice
