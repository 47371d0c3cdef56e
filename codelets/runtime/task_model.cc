#include "codelets/runtime/task_model.h"

#include <atomic>

#include "perfmodels/task_cost.h"

namespace sluice {
namespace {

std::atomic<const CostModel*> costs_in_use{nullptr};

/// Null for what is none of ours.
const TaskTag* tag_of(const starpu_task* task) {
  if (task->cl_arg == nullptr || task->cl_arg_size < sizeof(TaskTag)) return nullptr;
  const auto* tag = static_cast<const TaskTag*>(task->cl_arg);
  return tag->magic == TaskTag::expected_magic ? tag : nullptr;
}

double expected_us(starpu_task* task, unsigned worker, unsigned /*implementation*/) {
  const CostModel* costs = costs_in_use.load(std::memory_order_acquire);
  const TaskTag* tag = tag_of(task);
  if (costs == nullptr || tag == nullptr) return 1;
  const Device device = starpu_worker_get_type(static_cast<int>(worker)) == STARPU_CUDA_WORKER
                            ? Device::gpu
                            : Device::cpu;
  return 1e6 * task_seconds(*costs, *tag, device);
}

std::uint32_t footprint(starpu_task* task) {
  const TaskTag* tag = tag_of(task);
  return tag != nullptr ? task_footprint(*tag) : 0;
}

}  // namespace

CostsInUse::CostsInUse(const CostModel& costs) {
  costs_in_use.store(&costs, std::memory_order_release);
}

CostsInUse::~CostsInUse() { costs_in_use.store(nullptr, std::memory_order_release); }

starpu_perfmodel task_model(const char* symbol) {
  starpu_perfmodel model{};
  model.type = STARPU_PER_WORKER;
  model.symbol = symbol;
  model.worker_cost_function = expected_us;
  model.footprint = footprint;
  return model;
}

}  // namespace sluice
