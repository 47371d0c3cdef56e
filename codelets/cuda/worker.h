#pragma once

#include <memory>

#include "codelets/runtime/gpu.h"

namespace sluice::cuda {

// GpuKernels' part that belongs to StarPU's worker of the GPU; see gpu.h.

std::unique_ptr<GpuWorker> make_worker(GpuWorker::Launches launches);
void start_sublayers(const Context& gpu);
void end_of_sublayer(const Context& gpu, Phase phase, Sublayer sublayer);

}  // namespace sluice::cuda
