#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "codelets/cuda/linear.h"
#include "codelets/kernels/activate_ref.h"
#include "codelets/kernels/linear_ref.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"

namespace sluice::test {

/// x [rows, x_stride], of which the first `in` of each row are used, by `weight` [out, in].
inline std::vector<double> linear_reference_of(const std::vector<float>& x, std::int64_t x_stride,
                                               const std::vector<float>& weight, const float* bias,
                                               std::int64_t rows, std::int64_t in,
                                               std::int64_t out) {
  std::vector<double> y(static_cast<std::size_t>(rows * out));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row(x.begin() + r * x_stride, x.begin() + r * x_stride + in);
    linear_reference(row.data(), weight.data(), bias, in, out, y.data() + r * out);
  }
  return y;
}

inline double activate(Epilogue epilogue, double x) {
  switch (epilogue) {
    case Epilogue::relu:
      return x > 0 ? x : 0;
    case Epilogue::gelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Epilogue::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Epilogue::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

/// A gate and what it lets through; with clamped_gate up to gated_limit.
constexpr float gated_limit = 1.25F;
inline double gated(Epilogue activation, double gate, double up) {
  if (activation != Epilogue::clamped_gate) return activate(activation, gate) * up;
  return gated_reference(Activation::clamped_swiglu, static_cast<double>(gated_limit), gate, up);
}

/// The test's device as if it had other multiprocessors or were of another generation.
inline cuda::Context like_gpu(int compute_capability, int num_multiprocessors) {
  cuda::Context gpu = test::gpu();
  gpu.compute_capability = compute_capability;
  gpu.num_multiprocessors = num_multiprocessors;
  return gpu;
}

inline void run_linear_on(const cuda::Context& gpu, const LinearCall& call) {
  cuda::linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
}
inline void run_linear_on(const cuda::Context& gpu, const GatedLinearCall& call) {
  cuda::gated_linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
}

}  // namespace sluice::test
