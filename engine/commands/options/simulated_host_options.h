#pragma once

#include <string>
#include <vector>

#include "engine/machine/simulated_host.h"

namespace sluice {

class CommandLine;

/// --rates, --threads, --device and --link.
void declare_simulated_host(CommandLine& line);
/// Of these --rates and --link alone, for a command that has the others for itself.
void declare_simulated_rates(CommandLine& line);
/// What they say. Throws UsageError.
SimulatedHost read_simulated_host(const CommandLine& line);
/// The arguments that say the same.
std::vector<std::string> arguments_of(const SimulatedHost& host);

}  // namespace sluice
