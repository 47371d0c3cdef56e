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

/// Argument of the FC1 codelet (LIA Table 1, sublayer 5).
struct Fc1Args {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  WeightType weight = {};
  WeightType gate = {};  ///< of a gated FFN; the format may differ from the weight's
};

/// h = act(norm(x) W_1^T + b), or with a gated FFN h = act(norm(x) W_gate^T + b_gate) *
/// (norm(x) W_1^T + b).
struct Fc1Operands {
  const Fc1Args* args = nullptr;
  const float* x = nullptr;        ///< [num_tokens, hidden_size]
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< [ffn_size, hidden_size]
  Weight gate = {};                ///< the same shape; none unless gated
  std::byte* h = nullptr;  ///< [num_tokens, ffn_size], dtype, rows activation_stride() apart
};
void fc1_cpu(const CpuContext& cpu, const Fc1Operands& operands);
void fc1_cuda(const cuda::Context& gpu,
              const Fc1Operands& operands);  ///< operands in device memory
/// Double precision with plain weights [ffn_size, hidden_size]; h [num_tokens, ffn_size].
void fc1_reference(const Fc1Operands& operands, const float* weight, const float* gate, double* h);

struct Fc1Handles {
  HandleRef x;
  HandleRef vectors;
  HandleRef weight;
  HandleRef gate;  ///< empty unless gated
  HandleRef h;
};
void submit_fc1(const Fc1Args& args, const Fc1Handles& handles);

}  // namespace sluice
