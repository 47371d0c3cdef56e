#pragma once

#include <string>
#include <vector>

#include "engine/replay/arrivals.h"
#include "engine/replay/statistics.h"

namespace sluice {

// What options of `sluice replay` say. Each throws UsageError of one line that names the option,
// what was found, and what is expected.

/// --arrivals: "trace", "poisson:1,2,4" (one for each rate), "all", "closed:8".
std::vector<Arrivals> parse_arrivals(const std::string& text);

/// --lengths: "uniform:1000,100"; several, separated by commas: "uniform:1000,50,uniform:1000,100".
std::vector<UniformLengths> parse_lengths(const std::string& text);

/// --slo: "ttft=1,tpot=0.1", or one of them.
Slo parse_slo(const std::string& text);

/// --format: "azure", "burstgpt", "jsonl", "lengths" or "mooncake".
TraceFormat parse_format(const std::string& text);

}  // namespace sluice
