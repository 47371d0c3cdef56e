#include "codelets/runtime/simulated.h"

#include <sys/mman.h>

#include <cerrno>
#include <ctime>
#include <string>
#include <utility>

#include "codelets/runtime/runtime.h"
#include "codelets/runtime/task_model.h"

namespace sluice {
namespace {

/// What StarPU allocates in main memory. Results that are read are zeros.
int reserve_memory(unsigned /*node*/, void** address, std::size_t size_bytes, int /*flags*/) {
  *address =
      mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *address == MAP_FAILED ? -ENOMEM : 0;
}
int release_memory(unsigned /*node*/, void* address, std::size_t size_bytes, int /*flags*/) {
  return munmap(address, size_bytes);
}

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// StarPU's callbacks know no object, hence the one in use.
const FinishedTasks::Listener* listener_in_use = nullptr;

void tell_listener(void* /*unused*/) {
  const starpu_task* task = starpu_task_get_current();
  const TaskTag* tag = tag_of(task);
  if (tag == nullptr) return;
  const starpu_profiling_task_info* info = task->profiling_info;
  const bool on_gpu = starpu_worker_get_type(info->workerid) == STARPU_CUDA_WORKER;
  (*listener_in_use)({.tag = *tag,
                      .device = on_gpu ? Device::gpu : Device::cpu,
                      .start_s = seconds_of(info->start_time),
                      .end_s = seconds_of(info->end_time)});
}

}  // namespace

SimulatedRuntime::SimulatedRuntime(const Options& options) {
  if (options.passing_bytes) disk_.emplace(*options.passing_bytes, 0);
  variables_.set("STARPU_LIMIT_CUDA_MEM", std::to_string(options.gpu_bytes >> 20));  // in MiB
  // A task that a worker has taken ahead is not overtaken by one that the CPU waits for.
  variables_.set("STARPU_CUDA_PIPELINE", "1");
  starpu_malloc_set_hooks(reserve_memory, release_memory);
  starpu_conf conf;
  check_starpu(starpu_conf_init(&conf), "reading its settings");
  conf.ncpus = 1;
  conf.ncuda = options.has_gpu ? 1 : 0;
  conf.nopencl = 0;
  conf.sched_policy = options.scheduler;
  conf.catch_signals = 0;
  check_starpu(starpu_init(&conf), "starting on the simulated machine");
  starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
  int worker = -1;
  if (starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, &worker, 1) == 1)
    gpu_node_ = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
  if (starpu_memory_nodes_get_numa_count() > 1) cxl_node_ = 1;  // engine/simulate/platform.h
  if (disk_) disk_->attach();
}

SimulatedRuntime::~SimulatedRuntime() {
  wait_for_all_tasks();
  starpu_shutdown();
}

FinishedTasks::FinishedTasks(Listener listener) : listener_(std::move(listener)) {
  listener_in_use = &listener_;
  set_task_observer(tell_listener);
}

FinishedTasks::~FinishedTasks() {
  wait_for_all_tasks();
  set_task_observer(nullptr);
  listener_in_use = nullptr;
}

}  // namespace sluice
