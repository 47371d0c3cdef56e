#pragma once

#include <cstddef>
#include <cstdint>

#include "base/weight_format.h"
#include "codelets/kernels/bf16_arithmetic.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::quantized {

/// C = X W^T, or C += X W^T, with X in bf16 and W [64 strips, in] in fp8, whose values are exact in
/// bf16.
///
///   for block of StripLayout::block() inputs, in order
///     sum     = X W^T of the values before they are scaled, by strip_gemm()
///     c[r, j] = sum[r, j] * scale[j] + c[r, j]
///
/// so that a row's bits do not depend on the other rows; on the CPU as far as strip_gemm()'s do.
struct Fp8Gemm {
  WeightFormat format;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  const std::uint16_t* x = nullptr;  ///< [rows, in], bf16
  std::int64_t x_stride = 0;         ///< elements between rows of X
  const std::byte* w = nullptr;      ///< strips one behind the other, 64-byte aligned
  std::int64_t strips = 1;
  float* c = nullptr;         ///< [rows, 64 strips]
  std::int64_t c_stride = 0;  ///< elements between rows of C
  bool accumulate = false;
  Bf16Arithmetic arithmetic = fastest_strip_arithmetic();
};
void gemm_fp8(const Fp8Gemm& call);

}  // namespace sluice::quantized
