#include "codelets/qk/qk.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/kv_access.h"

namespace sluice {
namespace {

constexpr SublayerRange qk_alone{Sublayer::qk, Sublayer::qk};

struct Run {
  template <typename Context>
  void operator()(const Context& context, const AttentionArgs& args, Buffers buffers) const {
    QkOperands operands{.args = &args};
    const BatchView batch(buffers.take<void>());
    operands.q = buffers.take<std::byte>();
    const KvBuffers kv = KvAccess(args.kv, qk_alone).take_from(buffers);
    operands.scores = buffers.take<float>();
    if constexpr (is_gpu<Context>) {
      operands.batch = batch;
      operands.slab = kv.slab;
      operands.new_kv = kv.new_kv;
      gpu_kernels().qk(context, operands);
    } else {
      const AttentionKv readable(context, args.shape, args.kv, batch, kv);
      operands.batch = readable.batch();
      operands.slab = readable.slab();
      qk_cpu(context, operands);
    }
  }
};

}  // namespace

ScoreLayout::ScoreLayout(const DecoderShape& shape, const BatchView& batch)
    : window_(shape.sliding_window_tokens) {
  std::int64_t next = 0;
  for (const BatchRow& row : batch.rows()) {
    offsets_.push_back(next);
    next += shape.num_heads * columns(row.position);
  }
}

std::int64_t ScoreLayout::columns(std::int64_t position) const {
  return position + 1 - simd::first_visible_token(position, window_);
}

void submit_qk(const AttentionArgs& args, const QkHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_all<Run>("qk");
  AccessList accesses{reads(handles.batch), reads(handles.q)};
  KvAccess(args.kv, qk_alone).add_to(accesses, handles.slab, handles.new_kv);
  accesses.add(writes(handles.scores));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
