#pragma once

#include <cstdint>

namespace sluice {

/// Parts of `size` that `whole` is cut into. Both are positive, or `whole` is 0.
constexpr std::int64_t divide_up(std::int64_t whole, std::int64_t size) {
  return (whole + size - 1) / size;
}
/// The next multiple of `step`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return divide_up(value, step) * step;
}

}  // namespace sluice
