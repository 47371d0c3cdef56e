#pragma once

#include <cstdint>
#include <vector>

#include "engine/replay/trace_file.h"

namespace sluice {

/// Ids that a prompt's tokens are drawn from.
struct TokenRange {
  std::int32_t first = 0;
  std::int32_t last = 0;  ///< itself one of them
};

/// The prompt's tokens, input_tokens of them: the trace's own, or some that are drawn from `range`.
/// Blocks with the same id in prefix_blocks have the same tokens in all requests; what no id names
/// is drawn for the request with this index alone. The same seed gives the same on every machine.
std::vector<std::int32_t> traced_prompt(const TracedRequest& request, std::int64_t index,
                                        TokenRange range, std::uint64_t seed);

}  // namespace sluice
