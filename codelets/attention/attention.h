#pragma once

#include "codelets/kernels/simd.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/shape.h"

namespace sluice {

/// Argument of the attention codelets.
struct AttentionArgs {
  TaskTag tag;
  DecoderShape shape;
};

/// out = softmax(q K^T / sqrt(head_dim), causal, within the window) V for every row and head, one
/// flash-style stage (LIA Table 1, sublayers 2 and 3): the scores are never stored.
struct AttentionOperands {
  const AttentionArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* q = nullptr;     ///< [rows, q_size], dtype
  const std::byte* slab = nullptr;  ///< pages, dtype
  std::byte* out = nullptr;         ///< [rows, q_size], dtype
};
void attention_cpu(const CpuContext& cpu, const AttentionOperands& operands);

/// Double precision, straight from the formula; out [rows, q_size].
void attention_reference(const AttentionOperands& operands, double* out);

struct AttentionHandles {
  const DataHandle& batch;
  const DataHandle& q;
  const DataHandle& slab;
  const DataHandle& out;
};
void submit_attention(const AttentionArgs& args, const AttentionHandles& handles);

/// The kernel's view of rows [first_row, +num_rows) of one sequence, for one KV head; shared with
/// the split pair.
simd::AttentionBlock attention_block_of(const DecoderShape& shape, const BatchView& batch,
                                        const BatchSequence& sequence, std::int64_t first_row,
                                        std::int64_t num_rows, std::int64_t kv_head);

}  // namespace sluice
