#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace sluice::test {

/// `count` pages of a KV cache, from `first` on.
inline std::vector<std::int32_t> pages(std::int32_t first, std::int64_t count) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace sluice::test
