#include "codelets/qk/qk.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const AttentionArgs& args, Buffers buffers) {
  QkOperands operands{.args = &args};
  operands.batch = BatchView(buffers.take<void>());
  operands.q = buffers.take<std::byte>();
  operands.slab = buffers.take<std::byte>();
  operands.scores = buffers.take<float>();
  qk_cpu(cpu, operands);
}

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
  static const auto codelet = Codelet<AttentionArgs>::with_cpu<run>("qk");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.batch), reads(handles.q), reads(handles.slab), writes(handles.scores)});
}

}  // namespace sluice
