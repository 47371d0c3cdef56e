#include "codelets/runtime/gpu_busy.h"

#include <starpu.h>
#include <starpu_profiling.h>

#include "codelets/runtime/runtime.h"

namespace sluice {

GpuBusy::GpuBusy() {
  starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
  seconds();
  seconds_ = 0;
}

GpuBusy::~GpuBusy() { starpu_profiling_status_set(STARPU_PROFILING_DISABLE); }

double GpuBusy::seconds() {
  const int worker = starpu_worker_get_by_type(STARPU_CUDA_WORKER, 0);
  if (worker < 0) return 0;
  starpu_profiling_worker_info info{};
  // Each call tells of the time since the one before.
  check_starpu(starpu_profiling_worker_get_info(worker, &info), "asking for a worker's times");
  constexpr double per_us = 1e-6;
  seconds_ += starpu_timing_timespec_to_us(&info.executing_time) * per_us;
  return seconds_;
}

}  // namespace sluice
