#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "codelets/runtime/shape.h"

namespace sluice {

/// A norm's parameters; null weight means 1, null bias 0.
struct NormVectors {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

/// GEMM input of a block: norm(x) for pre-norm models, x itself otherwise, in the shape's dtype.
/// x [rows, hidden_size] f32; out [rows, hidden_size], rows activation_stride() apart.
void block_input(ThreadPool& pool, const DecoderShape& shape, const NormVectors& norm,
                 const float* x, std::int64_t rows, std::byte* out);

/// What follows a block's residual: x = norm(x) for post-norm models, nothing otherwise.
void block_output(ThreadPool& pool, const DecoderShape& shape, const NormVectors& norm, float* x,
                  std::int64_t rows);

/// Double-precision norm of one row of n elements, for the references; `out` may be `x`.
void norm_reference(const DecoderShape& shape, const NormVectors& norm, const double* x,
                    std::int64_t n, double* out);

}  // namespace sluice
