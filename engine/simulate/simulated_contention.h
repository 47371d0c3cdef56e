#pragma once

#include "perfmodels/cost_model.h"

namespace sluice {

/// While it lives, what runs on the simulated machine slows other things down, from moment to
/// moment, as a cost model's interference() says. One at a time in a process; StarPU runs.
///   data on the GPU's link     a rival takes its share of each device
///   a kernel                   the GPU's links lose bandwidth
///   a kernel of the stand-in   half of the cores, and a wait for what is on its way back
class SimulatedContention {
 public:
  /// Whether anything slows anything.
  static bool is_needed(const CostModel& costs);
  explicit SimulatedContention(const CostModel& costs);
  ~SimulatedContention();
  SimulatedContention(const SimulatedContention&) = delete;
  SimulatedContention& operator=(const SimulatedContention&) = delete;

  /// From now on, tasks are mostly of this phase. At first they are prefill's.
  void enter(Phase phase);
};

}  // namespace sluice
