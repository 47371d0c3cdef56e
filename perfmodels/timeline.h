#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "perfmodels/chain.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// Seconds for which each part of the machine is busy.
struct BusyTimes {
  double cpu_s = 0;
  double gpu_s = 0;
  double to_gpu_s = 0;  ///< on the link to the GPU: weights, KV, values
  double to_cpu_s = 0;  ///< from it
  double disk_s = 0;

  BusyTimes& operator+=(const BusyTimes& other);
  BusyTimes operator*(double factor) const;
  using Part = std::pair<std::string_view, double>;
  /// Each with its name: "cpu", "gpu", "link to gpu", "link to cpu", "disk".
  std::array<Part, 5> parts() const;
  Part busiest() const;
};

/// One iteration.
struct IterationEstimate {
  double seconds = 0;
  BusyTimes busy;
};

enum class Start : std::uint8_t {
  cold,    ///< nothing is loaded
  steady,  ///< the iteration follows one like it, whose end its first loads overlap
};

/// How long an iteration of these chains takes: their tasks in the order in which they can start
/// (of equals the chain that the device has just worked for, then the lower layer, then the earlier
/// chain), each device and each direction of a link one
/// thing at a time. Weights of unit u (a layer or half of one, as `prefetch` says) may cross as
/// soon as all chains are done with unit u-2, in that order, and values go before them: weights
/// under way wait. All chains use one copy of the weights. What comes from a disk passes through
/// DDR meanwhile. From the last layer's sublayer 4 on only one row a sequence is left, which draws
/// a token. Never less than what the busiest part of the machine needs.
IterationEstimate estimate_iteration(const CostModel& costs, const MemoryPlan& memory,
                                     std::span<const Chain> chains, Prefetch prefetch, Start start);

}  // namespace sluice
