#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/median.h"

namespace sluice {

/// How many times as fast as something else something is, round by round: both were measured in
/// turns, and a machine's rates drift by more than they differ.
struct Gain {
  double median = 1;
  double share = 0;  ///< of the rounds in which it is faster

  /// By more than chance.
  bool is_sure() const { return median >= 1.02 && share >= 0.75; }

  /// Of the rounds that both have; at least one. Seconds.
  static Gain over(std::span<const double> base, std::span<const double> seconds) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < std::min(base.size(), seconds.size()); ++round)
      ratios.push_back(base[round] / seconds[round]);
    const auto faster = std::count_if(ratios.begin(), ratios.end(), [](double r) { return r > 1; });
    return {.median = sluice::median(ratios),
            .share = static_cast<double>(faster) / static_cast<double>(ratios.size())};
  }
};

}  // namespace sluice
