#pragma once

#include <cstdint>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_job.h"
#include "codelets/cuda/neighbours.h"

namespace sluice::cuda {

/// Products whose depth was split: `count` parts of [rows, stride], to be added in order.
struct LinearParts {
  const float* y;
  const float* gate;  ///< null unless gated
  std::int64_t count;
  std::int64_t elements;  ///< from one part to the next
  std::int64_t stride;
};

/// dst of `columns` columns from the sums of their parts.
void finish_linear(const Context& gpu, const LinearParts& parts, const LinearOutput& to,
                   std::int64_t rows, std::int64_t columns);

__device__ inline float activate(Epilogue epilogue, float y) {
  switch (epilogue) {
    case Epilogue::relu:
      return y > 0 ? y : 0;
    case Epilogue::gelu:
      return y / 2 * (1 + erff(y * 0.70710678F));
    case Epilogue::gelu_tanh:
      return y / 2 * (1 + tanhf(0.79788456F * (y + 0.044715F * y * y * y)));
    case Epilogue::silu:
      return y / (1 + expf(-y));
    default:
      return y;
  }
}

/// Activation::clamped_swiglu; a NaN stays one.
__device__ inline float clamped_swiglu(float limit, float gate, float up) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return (up + 1) * (gate / (1 + expf(-clamped_swiglu_slope * gate)));
}

/// What `to` has of a product's element, before it is rounded; `there` is what an accumulating one
/// adds to.
__device__ inline float finished(const LinearOutput& to, std::int64_t column, float y, float gate,
                                 float there) {
  if (to.bias != nullptr) y += to.bias[column];
  if (to.gated) {
    if (to.gate_bias != nullptr) gate += to.gate_bias[column];
    if (to.epilogue == Epilogue::clamped_gate) return clamped_swiglu(to.limit, gate, y);
    return y * activate(to.epilogue, gate);
  }
  return to.epilogue == Epilogue::accumulate ? y + there : activate(to.epilogue, y);
}

__device__ inline bool adds_up(const LinearOutput& to) {
  return !to.gated && to.epilogue == Epilogue::accumulate;
}

__device__ inline void put_finished(const LinearOutput& to, std::int64_t row, std::int64_t column,
                                    float y, float gate) {
  const std::int64_t at = row * to.stride + column;
  y = finished(to, column, y, gate, adds_up(to) ? static_cast<const float*>(to.dst)[at] : 0);
  if (to.dtype == DType::f32) {
    static_cast<float*>(to.dst)[at] = y;
  } else {
    static_cast<BFloat16*>(to.dst)[at] = to_bf16(y);
  }
}

__device__ inline float sum_parts(const float* part, const LinearParts& parts, std::int64_t at) {
  float sum = 0;
#pragma unroll 8  // that many are on their way at once
  for (std::int64_t i = 0; i < parts.count; ++i) sum += part[i * parts.elements + at];
  return sum;
}

}  // namespace sluice::cuda
