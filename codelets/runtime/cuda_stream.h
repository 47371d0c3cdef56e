#pragma once

#include <starpu.h>
#include <starpu_cuda.h>

namespace sluice::cuda {

/// The stream of the GPU's worker that calls: StarPU takes its tasks for done when the stream is.
inline cudaStream_t worker_stream() { return starpu_cuda_get_local_stream(); }

}  // namespace sluice::cuda
