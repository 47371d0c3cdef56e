#include "codelets/attention/attention.h"

#include <cmath>

namespace sluice {
namespace {

void run(const CpuContext& cpu, const AttentionArgs& args, Buffers buffers) {
  AttentionOperands operands{.args = &args};
  operands.batch = BatchView(buffers.take<void>());
  operands.q = buffers.take<std::byte>();
  operands.slab = buffers.take<std::byte>();
  operands.out = buffers.take<std::byte>();
  attention_cpu(cpu, operands);
}

}  // namespace

void submit_attention(const AttentionArgs& args, const AttentionHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_cpu<run>("attention");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.batch), reads(handles.q), reads(handles.slab), writes(handles.out)});
}

float attention_scale(const DecoderShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

simd::KvHeads kv_heads_of(const DecoderShape& shape, const BatchView& batch,
                          const BatchSequence& sequence, const std::byte* slab,
                          std::int64_t first_head, std::int64_t num_heads) {
  return {.dtype = shape.dtype,
          .num_heads = num_heads,
          .head_dim = shape.head_dim,
          .padded_head_dim = shape.padded_head_dim(),
          .slab = slab,
          .page_elements = shape.page_elements(),
          .first_offset = shape.k_offset(first_head),
          .pages = batch.pages(sequence)};
}

simd::GroupedQuery query_of(const DecoderShape& shape, const simd::KvHeads& kv,
                            std::int64_t position, std::int64_t group, const std::byte* q) {
  return {.kv = kv,
          .group = group,
          .q = q,
          .scale = attention_scale(shape),
          .first_token = simd::first_visible_token(position, shape.sliding_window_tokens),
          .end_token = position + 1};
}

}  // namespace sluice
