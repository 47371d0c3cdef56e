#pragma once

#include <memory>

#include "codelets/cuda/stamps.h"
#include "codelets/runtime/gpu.h"

namespace sluice::cuda {

// GpuKernels' part that belongs to StarPU's worker of the GPU; see gpu.h.

std::unique_ptr<GpuWorker> make_worker(GpuWorker::Launches launches);

}  // namespace sluice::cuda
