#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "models/config.h"

namespace sluice {

/// What a run's largest iteration computes.
struct LargestIteration {
  std::int64_t rows = 0;        ///< tokens
  std::int64_t logit_rows = 0;  ///< of them, that a token is drawn for
  std::int64_t sequences = 0;
  std::int64_t context_tokens = 0;  ///< cached and new, of all sequences
};

/// Memory of a GPU that holds no data of StarPU's, in bytes.
struct GpuScratch {
  std::uint64_t workspace_bytes = 0;  ///< of a kernel while it runs
  std::uint64_t stage_bytes = 0;      ///< of what passes between the kernels of one task
  std::uint64_t blas_bytes = 0;       ///< cuBLASLt's, which the worker takes when it starts

  std::uint64_t total() const { return workspace_bytes + stage_bytes + blas_bytes; }
};

/// What the CUDA kernels take at most, by what each of them puts into its workspace: a linear map a
/// piece of its weight (32 to 128 MiB) and of its product (64 MiB), or sums of each
/// multiprocessor's blocks; attention its parts' outputs, and KV that it gathers away from home.
/// `memory_bytes` of the GPU are StarPU's.
GpuScratch gpu_scratch(const ModelConfig& config, DType dtype, const LargestIteration& largest,
                       int num_multiprocessors, std::uint64_t memory_bytes);

}  // namespace sluice
