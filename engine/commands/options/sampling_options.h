#pragma once

#include <string>
#include <vector>

#include "engine/requests/request.h"

namespace sluice {

class CommandLine;

/// --temperature, --top-k, --top-p, --min-p, --repetition-penalty, --seed and --stop.
void declare_sampling_options(CommandLine& line);
/// `otherwise` with what they say in its place, and a seed of its own where none is given. Throws
/// UsageError.
SamplingParams read_sampling(const CommandLine& line, SamplingParams otherwise);
/// The texts of --stop. Throws UsageError.
std::vector<std::string> read_stop(const CommandLine& line);

}  // namespace sluice
