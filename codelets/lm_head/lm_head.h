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

/// Argument of the LM head codelet.
struct LmHeadArgs {
  TaskTag tag;
  DecoderShape shape;
  std::int64_t vocab_size = 0;
  std::int64_t embed_size = 0;  ///< columns of the head
  std::int64_t first_row = 0;   ///< of the handle of x, where there are other rows before
  bool final_norm = true;
  bool norm_bias = false;  ///< the final norm's vector block holds weight, then bias
  bool norm_weight = true;
  bool project_out = false;
  WeightType projection = {};  ///< project_out's
  WeightType head = {};
};

/// logits = (W_out) norm(x) W_head^T, of as many rows as the tag has logit rows.
struct LmHeadOperands {
  const LmHeadArgs* args = nullptr;
  const float* x = nullptr;  ///< [logit rows, hidden_size]
  const float* final_norm =
      nullptr;              ///< weight [hidden_size], then bias [hidden_size]; may be null
  Weight project_out = {};  ///< [embed_size, hidden_size], or none
  Weight head = {};         ///< [vocab_size, embed_size]
  float* logits = nullptr;  ///< [logit rows, vocab_size]
};
void lm_head_cpu(const CpuContext& cpu, const LmHeadOperands& operands);
void lm_head_cuda(const cuda::Context& gpu,
                  const LmHeadOperands& operands);  ///< operands in device memory
/// Double precision with plain weights; logits [logit rows, vocab_size].
void lm_head_reference(const LmHeadOperands& operands, const float* project_out, const float* head,
                       double* logits);

struct LmHeadHandles {
  HandleRef x;
  HandleRef final_norm;   ///< empty without a final norm's vectors
  HandleRef project_out;  ///< empty unless embed_size != hidden_size
  HandleRef head;
  HandleRef logits;
};
void submit_lm_head(const LmHeadArgs& args, const LmHeadHandles& handles);

}  // namespace sluice
