#pragma once

#include <optional>
#include <string>
#include <vector>

#include "perfmodels/accelerated_model.h"
#include "perfmodels/work.h"

namespace sluice {

class CommandLine;

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
};

/// --rates, --threads, --device and --link.
void declare_simulated_host(CommandLine& line);
/// What they say. Throws UsageError.
SimulatedHost read_simulated_host(const CommandLine& line);
/// The arguments that say the same.
std::vector<std::string> arguments_of(const SimulatedHost& host);

}  // namespace sluice
