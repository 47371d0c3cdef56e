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

simd::AttentionBlock attention_block_of(const DecoderShape& shape, const BatchView& batch,
                                        const BatchSequence& sequence, std::int64_t first_row,
                                        std::int64_t num_rows, std::int64_t kv_head) {
  simd::AttentionBlock block;
  block.dtype = shape.dtype;
  block.head_dim = shape.head_dim;
  block.group = shape.group_size();
  block.num_rows = num_rows;
  block.first_position = sequence.context + first_row - sequence.first_row;
  block.sliding_window_tokens = shape.sliding_window_tokens;
  block.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  block.row_stride = shape.q_size();
  block.page_elements = shape.page_elements();
  block.k_offset = kv_head * page_tokens * shape.head_dim;
  block.v_offset = block.k_offset + shape.page_elements() / 2;
  block.pages = batch.pages(sequence);
  return block;
}

}  // namespace sluice
