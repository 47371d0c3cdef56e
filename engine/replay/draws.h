#pragma once

#include <cstdint>
#include <limits>

namespace sluice {

// What chance draws, from a source of 64 random bits such as std::mt19937_64, whose bits the C++
// standard fixes. These functions only compare and count, so that a seed gives the same numbers on
// every machine and with every standard library; std::*_distribution and std::log do not promise
// it.

/// A whole number of [low, high], each as likely. Bits from the last, incomplete round of the range
/// are drawn anew.
template <typename Bits>
std::int64_t draw_whole(Bits& bits, std::int64_t low, std::int64_t high) {
  const std::uint64_t range = static_cast<std::uint64_t>(high - low) + 1;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t incomplete = (most % range + 1) % range;  // 2^64 modulo range
  std::uint64_t drawn = bits();
  while (drawn > most - incomplete) drawn = bits();
  return low + static_cast<std::int64_t>(drawn % range);
}

/// A number of the exponential distribution with mean 1, by von Neumann's comparisons (Various
/// techniques used in connection with random digits, 1951). A run of falling numbers that begins
/// with x has an odd length with probability exp(-x): then x is taken. Each run of even length adds
/// 1. The result is a whole number plus a multiple of 2^-53.
template <typename Bits>
double draw_exponential(Bits& bits) {
  for (std::int64_t even_runs = 0;; ++even_runs) {
    const std::uint64_t first = bits();
    bool odd = true;
    std::uint64_t last = first;
    for (std::uint64_t next = bits(); next < last; next = bits()) {
      last = next;
      odd = !odd;
    }
    if (odd) return static_cast<double>(even_runs) + static_cast<double>(first >> 11) * 0x1p-53;
  }
}

}  // namespace sluice
