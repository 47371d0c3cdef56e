#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "perfmodels/accelerated_model.h"
#include "perfmodels/work.h"

namespace sluice {

/// A stand-in accelerator that is simulated.
struct SimulatedStandIn {
  std::uint64_t memory_bytes = 0;
  std::optional<LinkRate> link;  ///< else the calibration's, or a nominal one
};

/// What is said of the machine at hand when it is simulated.
struct SimulatedHost {
  std::optional<MachineRates> rates;  ///< of the moment; else the calibration's median ones
  std::optional<int> threads;         ///< processor threads of the run; else as many as a run takes
  std::optional<SimulatedStandIn> stand_in;
  bool names_device = false;  ///< the stand-in, or that there is none
  /// How a described machine's CPU is cut up: as `plan --cpu-plan` takes it.
  std::optional<std::string> cpu_plan;
};

}  // namespace sluice
