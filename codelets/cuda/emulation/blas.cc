// Blas without cuBLASLt: plain loops, sums in float and in order.
#include "codelets/cuda/blas.h"

#include <algorithm>
#include <vector>

#include "codelets/cuda/emulation/emulation.h"

namespace sluice::cuda {
namespace {

float element(const void* matrix, std::int64_t index, DType dtype) {
  if (dtype == DType::f32) return static_cast<const float*>(matrix)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(matrix)[index];
  return dtype == DType::bf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

void multiply_plainly(const Gemm& gemm) {
  std::vector<float> x(static_cast<std::size_t>(gemm.rows * gemm.in));
  for (std::int64_t i = 0; i < gemm.rows * gemm.in; ++i) {
    x[static_cast<std::size_t>(i)] =
        element(gemm.x, i / gemm.in * gemm.x_stride + i % gemm.in, gemm.dtype);
  }
  std::vector<float> column(static_cast<std::size_t>(gemm.in));
  for (std::int64_t o = 0; o < gemm.out; ++o) {
    for (std::int64_t i = 0; i < gemm.in; ++i) {
      column[static_cast<std::size_t>(i)] =
          element(gemm.weight, o * gemm.weight_stride + i, gemm.dtype);
    }
    for (std::int64_t r = 0; r < gemm.rows; ++r) {
      const float* row = x.data() + r * gemm.in;
      const std::int64_t at = r * gemm.y_stride + o;
      float sum = 0;
      for (std::int64_t i = 0; i < gemm.in; ++i)
        sum += row[i] * column[static_cast<std::size_t>(i)];
      if (gemm.bias != nullptr) sum += gemm.bias[o];
      if (gemm.epilogue == GemmEpilogue::accumulate) sum += element(gemm.y, at, gemm.y_dtype);
      if (gemm.epilogue == GemmEpilogue::relu) sum = std::max(sum, 0.0F);
      if (gemm.y_dtype == DType::f32) {
        static_cast<float*>(gemm.y)[at] = sum;
      } else {
        static_cast<BFloat16*>(gemm.y)[at] = to_bf16(sum);
      }
    }
  }
}

}  // namespace

struct Blas::Impl {};

Blas::Blas(void* /*workspace*/, std::size_t /*workspace_bytes*/) {}
Blas::~Blas() = default;

/// As a kernel of one thread: host code has no business in the device's memory.
bool Blas::multiply(const Gemm& gemm, cudaStream_t stream) {
  emulation::launch(stream, {"multiply_plainly", dim3(1), dim3(1), 0},
                    [gemm] { multiply_plainly(gemm); });
  return gemm.bias != nullptr;
}

}  // namespace sluice::cuda
