#pragma once

#include <array>

#include "perfmodels/cost_model.h"
#include "perfmodels/placement.h"

namespace sluice {

/// Seconds of one sublayer (LIA equation 2).
struct SublayerCost {
  double stored_s = 0;   ///< load what is stored elsewhere: weights, cached KV (equation 5)
  double values_s = 0;   ///< load what this layer has just made elsewhere: equations 4, 6, 7
  double compute_s = 0;  ///< equation 8, and the task's overhead
  double store_s = 0;    ///< send new KV home: equation 9
  double write_s = 0;    ///< of that, what a CPU takes to write it to a disk

  // Of fc1 where p5 = p6 = CPU: hot experts, fc1 and fc2 of them, which the GPU computes meanwhile.
  double hot_s = 0;         ///< on the GPU, with what a task of two sublayers costs
  double hot_values_s = 0;  ///< before: rows that are not there cross to it
  double hot_sum_s = 0;     ///< behind: their sum crosses to the CPU, where sublayer 4 ran there

  double load_s() const { return stored_s + values_s; }
  double total_s() const { return load_s() + compute_s + store_s; }
};

/// Seconds for which a CPU writes a batch's new KV of one layer to a disk: the whole pages that new
/// tokens go to, of which those with older tokens in them are read before.
double write_kv_s(const CostModel& costs, const BatchShape& shape);

struct LayerCost {
  Placement placement{Device::cpu};
  std::array<SublayerCost, 6> sublayers{};

  double load_s() const;
  /// Hot experts are among what the GPU computes.
  double compute_s(Device device) const;
  double store_s() const;
  /// Equation 2: nothing overlaps, but hot experts on the GPU and the others on the CPU, of which
  /// the longer way counts.
  double sum_s() const;
  /// Transfers run beside computation (Optimization-2): the longest of loads, stores, and all
  /// computation, which is a chain.
  double overlapped_s() const;
  /// The same where values that the layer itself makes cross between its tasks, since nothing else
  /// is there to compute meanwhile: they are part of the chain.
  double chained_s() const;

 private:
  /// All computation, of hot experts and the others the longer.
  double computing_s() const;
};

/// What one decoder layer costs under a placement (LIA equations 2 to 9, read by their meaning: an
/// operand crosses when it is not where the sublayer runs). Deviations from the printed equations:
/// a weight or KV crosses to the device that its home tier does not belong to, so a resident layer
/// loads nothing (5); equation 6's residual is 2 T hidden bytes for both sublayers; where p2 != p3
/// the scores, 2 T heads context bytes, cross instead of Table 1's d-sized operand (4). p0 = p6.
/// Devices that the placement uses must exist.
LayerCost layer_cost(const CostModel& costs, const Placement& placement, const BatchShape& shape,
                     const LayerHomes& homes);

/// What moves beside computation: nothing, all that crosses, or what is stored elsewhere.
enum class Overlap : std::uint8_t { none, transfers, stored };

/// Equation 1: the cheapest of all placements on the devices that exist, by sum_s(), overlapped_s()
/// or chained_s(). Of equally cheap ones the one with fewer changes of device, then the first.
LayerCost best_placement(const CostModel& costs, const BatchShape& shape, const LayerHomes& homes,
                         Overlap overlap);

}  // namespace sluice
