#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Where a projection's bias, and the norm behind it in a post-norm model, lie in a layer's
/// vectors.
struct ResidualVectors {
  std::int64_t bias = -1;         ///< [hidden_size], as the next two
  std::int64_t norm_weight = -1;  ///< < 0: there is none, likewise the others
  std::int64_t norm_bias = -1;

  /// Of Sublayer::out_proj or Sublayer::fc2.
  static ResidualVectors of(const VectorLayout& vectors, Sublayer sublayer);
};

/// Argument of the projections that end a layer's halves: LIA Table 1's sublayers 4 and 6.
struct ResidualArgs {
  TaskTag tag;
  DecoderShape shape;
  ResidualVectors vectors;
  WeightType weight = {};
};

/// x = x + inner W^T + b; then norm(x) in a post-norm model.
struct ResidualOperands {
  const ResidualArgs* args = nullptr;
  /// Attention's output or the FFN's middle values [num_tokens, weight.in], dtype, rows
  /// activation_stride() apart.
  const std::byte* inner = nullptr;
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< [hidden_size, q_size] or [hidden_size, ffn_size]
  float* x = nullptr;              ///< [num_tokens, hidden_size], updated
};
void residual_cpu(const CpuContext& cpu, const ResidualOperands& operands);
/// Operands in device memory.
void residual_cuda(const cuda::Context& gpu, const ResidualOperands& operands);
/// Double precision with plain `weight` [hidden_size, weight.in]; reads operands.x, writes `x`.
void residual_reference(const ResidualOperands& operands, const float* weight, double* x);

struct ResidualHandles {
  HandleRef inner;
  HandleRef vectors;
  HandleRef weight;
  HandleRef x;
};
/// args.tag.sublayer says which of the two it is; each has a performance model of its own.
void submit_residual(const ResidualArgs& args, const ResidualHandles& handles);

}  // namespace sluice
