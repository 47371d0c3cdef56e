#pragma once

#include <cstddef>
#include <cstdint>

#include "base/weight_format.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::quantized {

/// C = X W^T, or C += X W^T, in f32, with W [64 strips, in] in any format with codes.
///
///   for each 32 inputs, in order
///     sum     = sum of x[r, i] * (code[j, i] - zero point), in order
///     c[r, j] = sum * scale[j] + c[r, j]
///
/// so that a row's bits do not depend on the other rows, nor on how many there are; only on whether
/// the CPU multiplies and adds with one rounding.
struct F32Gemm {
  WeightFormat format;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  const float* x = nullptr;      ///< [rows, in]
  std::int64_t x_stride = 0;     ///< elements between rows of X
  const std::byte* w = nullptr;  ///< strips one behind the other, 64-byte aligned
  std::int64_t strips = 1;
  float* c = nullptr;         ///< [rows, 64 strips]
  std::int64_t c_stride = 0;  ///< elements between rows of C
  bool accumulate = false;
};
void gemm_f32(const F32Gemm& call);

}  // namespace sluice::quantized
