#include "codelets/runtime/task_model.h"

#include <atomic>

#include "perfmodels/task_cost.h"

namespace sluice {
namespace {

std::atomic<const CostModel*> costs_in_use{nullptr};
std::atomic<TaskTime> time_in_use{TaskTime::kernel};
std::atomic<const MemoryPlan*> memory_in_use{nullptr};
std::atomic<TaskObserver> observer_in_use{nullptr};

int num_sublayers_of(const TaskTag& tag) {
  return tag.num_layers *
         (1 + static_cast<int>(tag.last_sublayer) - static_cast<int>(tag.sublayer));
}

double expected_us(starpu_task* task, unsigned worker, unsigned /*implementation*/) {
  const CostModel* costs = costs_in_use.load(std::memory_order_acquire);
  const TaskTag* tag = tag_of(task);
  if (costs == nullptr || tag == nullptr) return 1;
  const Device device = starpu_worker_get_type(static_cast<int>(worker)) == STARPU_CPU_WORKER
                            ? Device::cpu
                            : Device::gpu;
  double seconds =
      task_seconds(*costs, *tag, device, memory_in_use.load(std::memory_order_relaxed));
  if (time_in_use.load(std::memory_order_relaxed) == TaskTime::with_overhead)
    seconds += share_of_experts(costs->model(), *tag) *
               costs->task_overhead_s(device, num_sublayers_of(*tag));
  return 1e6 * seconds;
}

std::uint32_t footprint(starpu_task* task) {
  const TaskTag* tag = tag_of(task);
  return tag != nullptr ? task_footprint(*tag) : 0;
}

}  // namespace

CostsInUse::CostsInUse(const CostModel& costs, TaskTime time, const MemoryPlan* memory) {
  memory_in_use.store(memory, std::memory_order_relaxed);
  time_in_use.store(time, std::memory_order_relaxed);
  costs_in_use.store(&costs, std::memory_order_release);
}

CostsInUse::~CostsInUse() { costs_in_use.store(nullptr, std::memory_order_release); }

void set_task_observer(TaskObserver observer) {
  observer_in_use.store(observer, std::memory_order_release);
}

TaskObserver task_observer() { return observer_in_use.load(std::memory_order_acquire); }

const TaskTag* tag_of(const starpu_task* task) {
  if (task->cl == nullptr || task->cl_arg == nullptr || task->cl_arg_size < sizeof(TaskTag))
    return nullptr;
  const auto* tag = static_cast<const TaskTag*>(task->cl_arg);
  return tag->magic == TaskTag::expected_magic ? tag : nullptr;
}

starpu_perfmodel task_model(const char* symbol) {
  starpu_perfmodel model{};
  model.type = STARPU_PER_WORKER;
  model.symbol = symbol;
  model.worker_cost_function = expected_us;
  model.footprint = footprint;
  return model;
}

}  // namespace sluice
