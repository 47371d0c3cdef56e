#include "codelets/attention_parts/attention_parts.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"
#include "codelets/runtime/stage_memory.h"

namespace sluice {
namespace {

std::size_t row_bytes(const DecoderShape& shape, std::int64_t width) {
  return static_cast<std::size_t>(width) * size_bytes(shape.dtype);
}

/// Copies `rows` rows and returns where the next ones would come from.
const std::byte* copy_rows(const CpuContext& cpu, const std::byte* from, std::byte* to,
                           std::int64_t rows, std::size_t row_bytes) {
  cpu.pool.run(rows, [&](std::int64_t row) {
    const std::size_t offset = static_cast<std::size_t>(row) * row_bytes;
    std::memcpy(to + offset, from + offset, row_bytes);
  });
  return from + static_cast<std::size_t>(rows) * row_bytes;
}

void split(const CpuContext& cpu, const QkvSplitOperands& operands) {
  const QkvSplitArgs& args = *operands.args;
  const QkvArgs qkv{args.tag, args.shape, args.vectors, KvPath::new_kv};
  const std::size_t q_bytes = row_bytes(args.shape, args.shape.q_size());
  const std::size_t kv_bytes = row_bytes(args.shape, 2 * args.shape.kv_size());
  const auto rows = static_cast<std::size_t>(args.tag.num_tokens);
  std::byte* q = stage_memory(cpu, rows * (q_bytes + kv_bytes));
  std::byte* new_kv = q + rows * q_bytes;
  qkv_cpu(cpu, {.args = &qkv,
                .batch = operands.batch,
                .x = operands.x,
                .rope = operands.rope,
                .vectors = operands.vectors,
                .weight = operands.weight,
                .q = q,
                .new_kv = new_kv});
  const std::byte* from_q = q;
  const std::byte* from_kv = new_kv;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.parts.num_parts); ++i) {
    from_q = copy_rows(cpu, from_q, operands.q.at(i), args.parts.rows.at(i), q_bytes);
    from_kv = copy_rows(cpu, from_kv, operands.new_kv.at(i), args.parts.rows.at(i), kv_bytes);
  }
}

/// The data that all parts share; then come q and new KV of each.
struct QkvSplitTask {
  using Handles = QkvSplitHandles;
  using Operands = QkvSplitOperands;

  template <typename Data>
  static void list(const QkvSplitArgs& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::x, &Operands::x);
    data.reads_if(args.shape.rope, &Handles::rope, &Operands::rope);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
  }
};

struct RunSplit {
  template <typename Context>
  void operator()(const Context& context, const QkvSplitArgs& args, Buffers buffers) const {
    QkvSplitOperands operands{.args = &args};
    BufferTaker taker(operands, buffers);
    QkvSplitTask::list(args, taker);
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.parts.num_parts); ++i) {
      operands.q.at(i) = buffers.take<std::byte>();
      operands.new_kv.at(i) = buffers.take<std::byte>();
    }
    if constexpr (is_gpu<Context>) {
      gpu_kernels().qkv_split(context, operands);
    } else {
      split(context, operands);
    }
  }
};

using Parts = std::array<const std::byte*, max_batch_parts>;

void join(const CpuContext& cpu, const AttentionJoinArgs& args, const Parts& parts,
          std::byte* out) {
  const std::size_t bytes =
      row_bytes(args.shape, activation_stride(args.shape.q_size(), args.shape.dtype));
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.parts.num_parts); ++i) {
    copy_rows(cpu, parts.at(i), out, args.parts.rows.at(i), bytes);
    out += static_cast<std::size_t>(args.parts.rows.at(i)) * bytes;
  }
}

struct RunJoin {
  template <typename Context>
  void operator()(const Context& context, const AttentionJoinArgs& args, Buffers buffers) const {
    auto* out = buffers.take<std::byte>();
    Parts parts{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.parts.num_parts); ++i)
      parts.at(i) = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().attention_join(context, args, parts, out);
    } else {
      join(context, args, parts, out);
    }
  }
};

}  // namespace

void submit_qkv_split(const QkvSplitArgs& args, const QkvSplitHandles& handles,
                      std::span<const QkvPart> parts) {
  static const auto codelet = Codelet<QkvSplitArgs>::with_all<RunSplit>("qkv_split");
  AccessList accesses{};
  AccessMaker maker(handles, accesses);
  QkvSplitTask::list(args, maker);
  for (const QkvPart& part : parts) {
    accesses.add(writes(part.q));
    accesses.add(writes(part.new_kv));
  }
  codelet.submit(args.shape.dtype, args, accesses, args.weight.format);
}

void submit_attention_join(const AttentionJoinArgs& args, std::span<const DataHandle* const> parts,
                           const DataHandle& out) {
  static const auto codelet = Codelet<AttentionJoinArgs>::with_all<RunJoin>("attention_join");
  AccessList accesses{writes(out)};
  for (const DataHandle* part : parts) accesses.add(reads(*part));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
