#pragma once

#include <optional>
#include <set>
#include <string>

#include "engine/machine/machine_costs.h"

namespace sluice {

/// The cost models of `plan`, which names machines.
class MachineList {
 public:
  /// A profile's model; of "this", the calibrated one or, said once in a line on stderr, one
  /// carried over from another's calibration, or an analytic one at rates that are probed then (a
  /// second, once). `model_name` is for that line. Throws Error for an unknown profile. StarPU must
  /// not run.
  MachineCosts load(const std::string& machine, const ModelDimensions& model,
                    const std::string& model_name);

 private:
  MachineRates probe(DType dtype);

  std::optional<MachineRates> probed_;
  std::set<std::string> said_;  ///< models that are not calibrated
};

}  // namespace sluice
