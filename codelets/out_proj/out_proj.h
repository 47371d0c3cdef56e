#pragma once

#include <cstddef>

#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the output projection codelet (LIA Table 1, sublayer 4).
struct OutProjArgs {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  WeightType weight = {};
};

/// x = x + attention W_o^T + b; then norm(x) in a post-norm model.
struct OutProjOperands {
  const OutProjArgs* args = nullptr;
  const std::byte* attention =
      nullptr;                     ///< [num_tokens, q_size], dtype, rows activation_stride() apart
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< [hidden_size, q_size]
  float* x = nullptr;              ///< [num_tokens, hidden_size], updated
};
void out_proj_cpu(const CpuContext& cpu, const OutProjOperands& operands);
void out_proj_cuda(const cuda::Context& gpu,
                   const OutProjOperands& operands);  ///< operands in device memory
/// Double precision with plain `weight` [hidden_size, q_size]; reads operands.x, writes `x`.
void out_proj_reference(const OutProjOperands& operands, const float* weight, double* x);

struct OutProjHandles {
  HandleRef attention;
  HandleRef vectors;
  HandleRef weight;
  HandleRef x;
};
void submit_out_proj(const OutProjArgs& args, const OutProjHandles& handles);

}  // namespace sluice
