#pragma once

#include <starpu.h>

#include "perfmodels/cost_model.h"

namespace sluice {

/// While it lives, StarPU's performance models ask this cost model. One at a time in a process;
/// without one, every task counts as a microsecond.
class CostsInUse {
 public:
  /// `costs` outlives it.
  explicit CostsInUse(const CostModel& costs);
  ~CostsInUse();
  CostsInUse(const CostsInUse&) = delete;
  CostsInUse& operator=(const CostsInUse&) = delete;
};

/// The performance model of a codelet whose tasks begin with a TaskTag: what a task costs on a
/// worker's device, by its tag. `symbol` outlives StarPU. Nothing is recorded while tasks run.
starpu_perfmodel task_model(const char* symbol);

}  // namespace sluice
