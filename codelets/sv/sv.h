#pragma once

#include "codelets/qk/qk.h"
#include "codelets/runtime/handle_ref.h"

namespace sluice {

/// out = softmax(S) V (LIA Table 1, sublayer 3), the other half of the split pair, which counts the
/// sinks; see AttentionOperands.
struct SvOperands {
  const AttentionArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* scores = nullptr;    ///< see ScoreLayout
  const std::byte* slab = nullptr;  ///< pages, dtype
  std::byte* out = nullptr;         ///< [rows, q_size], dtype, rows activation_stride() apart
  /// sv_cuda away from home, see AttentionOperands
  const std::byte* new_kv = nullptr;
  const float* vectors = nullptr;  ///< likewise
};
void sv_cpu(const CpuContext& cpu, const SvOperands& operands);
/// As attention_cuda.
void sv_cuda(const cuda::Context& gpu, const SvOperands& operands);
/// Double precision; out [rows, q_size].
void sv_reference(const SvOperands& operands, double* out);

struct SvHandles {
  HandleRef batch;
  HandleRef scores;
  HandleRef slab;
  HandleRef new_kv;
  HandleRef out;
  HandleRef vectors;
};
void submit_sv(const AttentionArgs& args, const SvHandles& handles);

}  // namespace sluice
