#pragma once

#include "perfmodels/cost_model.h"

namespace sluice {

/// While it lives, kernels on the simulated machine and what moves over its link to the GPU slow
/// each other down, from moment to moment, as a cost model's interference() says, and so do kernels
/// of two devices on the same cores: those are two processes (the stand-in), and a kernel of the
/// GPU then waits, too, for what is on its way back over the same connection. One at a time in a
/// process; StarPU runs.
///
/// SimGrid shares what it knows: a device whose kernels are slowed gets a rival that takes its
/// share of the device for as long as something is on its way, and the link loses bandwidth for as
/// long as a kernel runs.
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
