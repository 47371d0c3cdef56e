#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice {

/// The context tokens that a GPU's kernels are launched for: as many as there are, and up to an
/// eighth more (256, or 32 a sequence, where that is more), so that some 32 neighbouring iterations
/// of decoding launch the same.
constexpr std::int64_t recurring_context_tokens(std::int64_t tokens, std::int64_t sequences) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)));
  const std::int64_t step = std::max({std::int64_t{256}, power / 8, 32 * sequences});
  return (tokens + step - 1) / step * step;
}

}  // namespace sluice
