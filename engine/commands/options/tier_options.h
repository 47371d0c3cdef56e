#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/run/tiers.h"

namespace sluice {

class CommandLine;

/// --ddr, --disk, --cxl-nodes, --kv-tier, --dry-run and, for commands without --output-format, the
/// --json that goes with it.
enum class DryRunJson : std::uint8_t { own_option, of_output_format };
void declare_tier_options(CommandLine& line, DryRunJson json);
/// What they say. Throws UsageError.
TierSettings read_tier_settings(const CommandLine& line);
/// --json, with DryRunJson::own_option. Throws UsageError where it goes without --dry-run.
bool read_dry_run_json(const CommandLine& line, const TierSettings& tiers);

/// --parameters-tier and --kv-tier, of a machine that is planned or simulated.
void declare_host_tiers(CommandLine& line);
/// What they say. Throws UsageError.
HostTiers read_host_tiers(const CommandLine& line);
/// The arguments that say the same.
std::vector<std::string> arguments_of(const HostTiers& tiers);

}  // namespace sluice
