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

/// Argument of the codelet of a mixture's shared expert: an FFN that all rows go through beside
/// their own experts (DeepSeekMoE section 3.2).
struct SharedFfnArgs {
  TaskTag tag;
  DecoderShape shape;
  WeightType gate = {};  ///< of a gated FFN
  WeightType fc1 = {};
  WeightType fc2 = {};

  std::int64_t ffn_size() const { return fc1.out; }
};

/// x = x + act(n W_1^T) W_2^T, or gated as in FC1. It stands between the router and expert_join:
/// the experts' sum is added behind it.
struct SharedFfnOperands {
  const SharedFfnArgs* args = nullptr;
  const std::byte* normed = nullptr;  ///< n, see RouterOperands
  Weight gate = {};                   ///< [ffn_size, hidden_size]; none unless gated
  Weight fc1 = {};                    ///< the same shape
  Weight fc2 = {};                    ///< [hidden_size, ffn_size]
  float* x = nullptr;                 ///< [num_tokens, hidden_size], updated
};
void shared_ffn_cpu(const CpuContext& cpu, const SharedFfnOperands& operands);
/// Operands in device memory.
void shared_ffn_cuda(const cuda::Context& gpu, const SharedFfnOperands& operands);

/// All its plain weights in f32.
struct SharedFfnMatrices {
  const float* gate = nullptr;  ///< [ffn_size, hidden_size]; none unless gated
  const float* fc1 = nullptr;   ///< the same shape
  const float* fc2 = nullptr;   ///< [hidden_size, ffn_size]
};
/// Double precision: adds to `x` [num_tokens, hidden_size] what rows `normed` of that shape give.
void shared_ffn_reference(const SharedFfnArgs& args, const double* normed,
                          const SharedFfnMatrices& of, double* x);

struct SharedFfnHandles {
  HandleRef normed;
  HandleRef gate;  ///< empty unless gated
  HandleRef fc1;
  HandleRef fc2;
  HandleRef x;
};
void submit_shared_ffn(const SharedFfnArgs& args, const SharedFfnHandles& handles);

}  // namespace sluice
