#pragma once

#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the codelet that adds what a mixture's experts give.
struct ExpertJoinArgs {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  bool has_hot_sum = false;  ///< hot experts have a sum of their own
};

/// x = x + sum, or x + (sum + hot_sum); then norm(x) in a post-norm model.
struct ExpertJoinOperands {
  const ExpertJoinArgs* args = nullptr;
  const float* sum = nullptr;      ///< [num_tokens, hidden_size], of the experts
  const float* hot_sum = nullptr;  ///< likewise, of the hot ones; null: sum has all
  const float* vectors = nullptr;  ///< see VectorLayout
  float* x = nullptr;              ///< [num_tokens, hidden_size], updated
};
void expert_join_cpu(const CpuContext& cpu, const ExpertJoinOperands& operands);
/// Operands in device memory.
void expert_join_cuda(const cuda::Context& gpu, const ExpertJoinOperands& operands);

struct ExpertJoinHandles {
  HandleRef sum;
  HandleRef hot_sum;
  HandleRef vectors;
  HandleRef x;
};
void submit_expert_join(const ExpertJoinArgs& args, const ExpertJoinHandles& handles);

}  // namespace sluice
