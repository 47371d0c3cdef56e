#include "codelets/qk/qk.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void qk_cpu(const CpuContext& cpu, const QkOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const ScoreLayout layout(shape, operands.batch);
  cpu.pool.run(operands.batch.num_rows(), [&](std::int64_t r) {
    thread_local Workspace scratch;
    void* memory = scratch.reserve(simd::attend_scratch_bytes(1, shape.padded_head_dim()));
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const BatchSequence& sequence =
        operands.batch.sequences()[static_cast<std::size_t>(row.sequence)];
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const simd::KvHeads kv =
          kv_heads_of(shape, operands.batch, sequence, operands.slab, head / shape.group_size(), 1);
      const std::byte* q =
          operands.q + static_cast<std::size_t>(r * shape.q_size() + head * shape.head_dim) *
                           size_bytes(shape.dtype);
      simd::score_row(query_of(shape, kv, row.position, 1, q),
                      operands.scores + layout.offset(r) + head * layout.columns(row.position),
                      memory);
    }
  });
}

}  // namespace sluice
