#include "codelets/attention/attention.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/kv_access.h"

namespace sluice {
namespace {

constexpr SublayerRange both_sublayers{Sublayer::qk, Sublayer::sv};

struct Run {
  template <typename Context>
  void operator()(const Context& context, const AttentionArgs& args, Buffers buffers) const {
    AttentionOperands operands{.args = &args};
    const BatchView batch(buffers.take<void>());
    operands.q = buffers.take<std::byte>();
    const KvBuffers kv = KvAccess(args.kv, both_sublayers).take_from(buffers);
    operands.out = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      operands.batch = batch;
      operands.slab = kv.slab;
      operands.new_kv = kv.new_kv;
      gpu_kernels().attention(context, operands);
    } else {
      const AttentionKv readable(context, args.shape, args.kv, batch, kv);
      operands.batch = readable.batch();
      operands.slab = readable.slab();
      attention_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_attention(const AttentionArgs& args, const AttentionHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_all<Run>("attention");
  AccessList accesses{reads(handles.batch), reads(handles.q)};
  KvAccess(args.kv, both_sublayers).add_to(accesses, handles.slab, handles.new_kv);
  accesses.add(writes(handles.out));
  codelet.submit(args.shape.dtype, args, accesses);
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
