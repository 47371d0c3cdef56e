#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"
#include "codelets/cuda/linear_job.h"

namespace sluice::cuda {

/// More rows, and all other layouts: unpacked piece by piece, then multiplied by Blas.
std::size_t product_scratch_bytes(const Context& gpu, const LinearJob& job);
void run_product(const Context& gpu, const LinearJob& job, std::byte* scratch);

}  // namespace sluice::cuda
