#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/rounding.h"
#include "base/weight_format.h"
#include "codelets/cuda/linear_limits.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/packed_blocks.h"

namespace sluice::cuda {

constexpr std::int64_t strip_columns = weight_strip_columns;
/// Depth that a warp multiplies at once: 16 bytes of a row of x for each lane.
constexpr std::int64_t step_depth = 32;

/// What becomes of the product y of one call: dst = epilogue(y + bias), or
/// activation(gate + gate_bias) * (y + bias), or Activation::clamped_swiglu of the two.
struct LinearOutput {
  const float* bias;
  const float* gate_bias;
  Epilogue epilogue;  ///< of a gated pair: the activation
  float limit;        ///< of Epilogue::clamped_gate
  bool gated;
  void* dst;
  DType dtype;
  std::int64_t stride;

  /// The same for columns from `first` on.
  LinearOutput from_column(std::int64_t first) const {
    LinearOutput part = *this;
    if (bias != nullptr) part.bias += first;
    if (gate_bias != nullptr) part.gate_bias += first;
    part.dst = static_cast<std::byte*>(dst) + static_cast<std::size_t>(first) * size_bytes(dtype);
    return part;
  }
};

/// A call of either kind.
struct LinearJob {
  PackedBlocks blocks;  ///< of a plain weight; of codes only its sizes and the type of the product
  WeightFormat format;
  PackedBlocks gate_blocks;  ///< of the gate's, in the same way
  WeightFormat gate_format;
  const std::byte* weight;
  const std::byte* gate;  ///< null unless gated
  const void* x;
  std::int64_t rows;
  std::int64_t x_stride;
  LinearOutput output;
};

LinearJob job_of(const LinearCall& call);
LinearJob job_of(const GatedLinearCall& call);

}  // namespace sluice::cuda
