#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/trace/trace.h"

namespace sluice {

/// What `sluice trace` prints: workers, links, memory, the ten longest gaps, and the critical path
/// of these iterations.
std::string trace_as_text(const Trace& trace, const std::vector<std::int64_t>& iterations);
/// The same as one JSON object, times in ns.
std::string trace_as_json(const Trace& trace, const std::vector<std::int64_t>& iterations);

}  // namespace sluice
