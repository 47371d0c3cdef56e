#pragma once

#include <starpu.h>

#include <cstdint>

#include "perfmodels/cost_model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// What a performance model counts: only what a kernel takes, or also what the task system adds to
/// each of a task's sublayers (CostModel::task_overhead_s), which a simulated one does not take by
/// itself.
enum class TaskTime : std::uint8_t { kernel, with_overhead };

/// While it lives, StarPU's performance models ask this cost model. One at a time in a process;
/// without one, every task counts as a microsecond.
class CostsInUse {
 public:
  /// `costs` and `memory` outlive it. `memory` says where operands are read; null: in each device's
  /// own memory.
  explicit CostsInUse(const CostModel& costs, TaskTime time = TaskTime::kernel,
                      const MemoryPlan* memory = nullptr);
  ~CostsInUse();
  CostsInUse(const CostsInUse&) = delete;
  CostsInUse& operator=(const CostsInUse&) = delete;
};

/// The performance model of a codelet whose tasks begin with a TaskTag: what a task costs on a
/// worker's device, by its tag. `symbol` outlives StarPU. Nothing is recorded while tasks run.
starpu_perfmodel task_model(const char* symbol);

/// Called on the worker after each task; starpu_task_get_current() is it. Null: nothing.
using TaskObserver = void (*)(void*);
void set_task_observer(TaskObserver observer);
TaskObserver task_observer();

/// The tag of one of our tasks; null for any other.
const TaskTag* tag_of(const starpu_task* task);

}  // namespace sluice
