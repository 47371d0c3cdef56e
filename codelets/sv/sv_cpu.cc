#include "codelets/runtime/runtime.h"
#include "codelets/sv/sv.h"

namespace sluice {

void sv_cpu(const CpuContext& cpu, const SvOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const float* sinks = sinks_of(*operands.args, operands.vectors);
  const ScoreLayout layout(shape, operands.batch);
  cpu.pool.run(operands.batch.num_rows(), [&](std::int64_t r) {
    thread_local Workspace scratch;
    void* memory = scratch.reserve(simd::attend_scratch_bytes(1, shape.padded_head_dim()));
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const BatchSequence& sequence =
        operands.batch.sequences()[static_cast<std::size_t>(row.sequence)];
    const std::int64_t stride = activation_stride(shape.q_size(), shape.dtype);
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const simd::KvHeads kv =
          kv_heads_of(shape, operands.batch, sequence, operands.slab, head / shape.group_size(), 1);
      std::byte* out = operands.out + static_cast<std::size_t>(r * stride + head * shape.head_dim) *
                                          size_bytes(shape.dtype);
      simd::GroupedQuery query = query_of(shape, kv, row.position, 1, nullptr);
      if (sinks != nullptr) query.sinks = sinks + head;
      simd::value_row(query,
                      operands.scores + layout.offset(r) + head * layout.columns(row.position), out,
                      memory);
    }
  });
}

}  // namespace sluice
