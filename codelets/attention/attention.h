#pragma once

#include <cmath>
#include <cstddef>

#include "codelets/kernels/attention_simd.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the attention codelets.
struct AttentionArgs {
  TaskTag tag;
  DecoderShape shape;
  KvPath kv = KvPath::slab;
  VectorLayout vectors = {};

  bool has_sinks() const { return vectors.attention_sinks >= 0; }
};

/// The heads' sinks [num_heads], or null where there are none.
inline const float* sinks_of(const AttentionArgs& args, const float* vectors) {
  return VectorLayout::at(vectors, args.vectors.attention_sinks);
}

/// out = softmax(q K^T / sqrt(head_dim), causal, within the window) V for every row and head, one
/// flash-style stage (LIA Table 1, sublayers 2 and 3): the scores are never stored. A head's sink
/// is one more score of the softmax, without a value: exp(sink) is added to its denominator
/// (Transformers' GptOss; "Efficient streaming language models with attention sinks").
struct AttentionOperands {
  const AttentionArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* q = nullptr;     ///< [rows, q_size], dtype
  const std::byte* slab = nullptr;  ///< pages, dtype
  std::byte* out = nullptr;         ///< [rows, q_size], dtype, rows activation_stride() apart
  /// attention_cuda away from home, see KvPath; the CPU's caller puts the pages together before
  const std::byte* new_kv = nullptr;
  const float* vectors = nullptr;  ///< see VectorLayout; read where there are sinks
};
void attention_cpu(const CpuContext& cpu, const AttentionOperands& operands);
/// All pointers are device memory. The tag's num_tokens, num_sequences and context_tokens are the
/// batch's. Throws Error when a head has more than 256 elements.
void attention_cuda(const cuda::Context& gpu, const AttentionOperands& operands);

/// Double precision, straight from the formula; out [rows, q_size].
void attention_reference(const AttentionOperands& operands, double* out);

struct AttentionHandles {
  HandleRef batch;
  HandleRef q;
  HandleRef slab;
  HandleRef new_kv;
  HandleRef out;
  HandleRef vectors;
};
void submit_attention(const AttentionArgs& args, const AttentionHandles& handles);

/// 1 / sqrt(head_dim)
inline float attention_scale(const DecoderShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

/// The keys and values of one sequence, of `num_heads` KV heads; shared with the split pair.
simd::KvHeads kv_heads_of(const DecoderShape& shape, const BatchView& batch,
                          const BatchSequence& sequence, const std::byte* slab,
                          std::int64_t first_head, std::int64_t num_heads);
/// What a row at `position` asks of them: `q` [num_heads * group, head_dim].
simd::GroupedQuery query_of(const DecoderShape& shape, const simd::KvHeads& kv,
                            std::int64_t position, std::int64_t group, const std::byte* q);

}  // namespace sluice
