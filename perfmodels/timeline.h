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
  double rest_s = 0;  ///< from a sequence's token to the last one's, the mean of all
};

enum class Start : std::uint8_t {
  cold,    ///< nothing is loaded
  steady,  ///< the iteration follows one like it, whose end its first loads overlap
};

/// How long an iteration of these chains takes (docs/design/cost-model.md#an-iteration):
/// 1. Each device and each direction of a link does one thing at a time.
/// 2. Units' weights (a layer's, or half of one's) cross in order, as far ahead as the bytes of two
///    whole units go. KV, what comes from a disk, and with half layers everything, of unit u once
///    all chains are done with u-2; layers that load nothing do not count.
/// 3. Values go behind the tensor that crosses, before all others. What comes from a disk passes
///    through DDR meanwhile.
/// 4. The chain that can start first goes on; of equals the one whose task goes on (where some
///    requests attend elsewhere: the one that the device has just worked for), then the lower
///    layer, then the earlier sublayer, then the earlier chain.
/// From the last layer's sublayer 4 on one row a sequence is left.
IterationEstimate estimate_iteration(const CostModel& costs, const MemoryPlan& memory,
                                     std::span<const Chain> chains, Prefetch prefetch, Start start);

}  // namespace sluice
