#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codelets/runtime/gpu.h"

namespace sluice::cuda {

// What GpuKernels says of the machine's GPUs; see gpu.h for each.

/// Throws Error when CUDA refuses.
int attribute(cudaDeviceAttr which, int device);

int count_gpus();
/// The first `most` of them.
GpuList find_gpus(int most);
CopyRates measure_copy_rates();
CopyRates measure_copy_rates_of(const Buffer& host);
std::uint64_t blas_bytes(std::uint64_t memory_bytes);
const char* take_last_error();

}  // namespace sluice::cuda
