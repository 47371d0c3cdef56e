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

/// Argument of the FC2 codelet (LIA Table 1, sublayer 6).
struct Fc2Args {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  WeightType weight = {};
};

/// x = x + h W_2^T + b; then norm(x) in a post-norm model.
struct Fc2Operands {
  const Fc2Args* args = nullptr;
  const std::byte* h = nullptr;  ///< [num_tokens, ffn_size], dtype, rows activation_stride() apart
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< [hidden_size, ffn_size]
  float* x = nullptr;              ///< [num_tokens, hidden_size], updated
};
void fc2_cpu(const CpuContext& cpu, const Fc2Operands& operands);
void fc2_cuda(const cuda::Context& gpu,
              const Fc2Operands& operands);  ///< operands in device memory
/// Double precision with plain `weight` [hidden_size, ffn_size]; reads operands.x, writes `x`.
void fc2_reference(const Fc2Operands& operands, const float* weight, double* x);

struct Fc2Handles {
  HandleRef h;
  HandleRef vectors;
  HandleRef weight;
  HandleRef x;
};
void submit_fc2(const Fc2Args& args, const Fc2Handles& handles);

}  // namespace sluice
