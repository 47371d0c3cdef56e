#include "codelets/attention_parts/attention_parts.h"

#include "codelets/runtime/codelet.h"
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
[[maybe_unused]] const std::byte* copy_rows(const cuda::Context& gpu, const std::byte* from,
                                            std::byte* to, std::int64_t rows,
                                            std::size_t row_bytes) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes;
  cuda::copy(gpu, from, to, bytes);
  return from + bytes;
}

struct RunSplit {
  template <typename Context>
  void operator()(const Context& context, const QkvSplitArgs& args, Buffers buffers) const {
    const QkvArgs qkv{args.tag, args.shape, args.vectors, KvPath::new_kv};
    QkvOperands all{.args = &qkv};
    all.batch = BatchView(buffers.take<void>());
    all.x = buffers.take<float>();
    all.rope = buffers.take_if<float>(args.shape.rope);
    all.vectors = buffers.take<float>();
    all.weight = buffers.take<std::byte>();
    const std::size_t q_bytes = row_bytes(args.shape, args.shape.q_size());
    const std::size_t kv_bytes = row_bytes(args.shape, 2 * args.shape.kv_size());
    const auto rows = static_cast<std::size_t>(args.tag.num_tokens);
    all.q = stage_memory(context, rows * (q_bytes + kv_bytes));
    all.new_kv = all.q + rows * q_bytes;
    if constexpr (is_gpu<Context>) {
      qkv_cuda(context, all);
    } else {
      qkv_cpu(context, all);
    }
    const std::byte* q = all.q;
    const std::byte* new_kv = all.new_kv;
    for (std::int64_t i = 0; i < args.parts.num_parts; ++i) {
      const std::int64_t part_rows = args.parts.rows.at(static_cast<std::size_t>(i));
      q = copy_rows(context, q, buffers.take<std::byte>(), part_rows, q_bytes);
      new_kv = copy_rows(context, new_kv, buffers.take<std::byte>(), part_rows, kv_bytes);
    }
  }
};

struct RunJoin {
  template <typename Context>
  void operator()(const Context& context, const AttentionJoinArgs& args, Buffers buffers) const {
    const std::size_t bytes =
        row_bytes(args.shape, activation_stride(args.shape.q_size(), args.shape.dtype));
    auto* out = buffers.take<std::byte>();
    for (std::int64_t i = 0; i < args.parts.num_parts; ++i) {
      const std::int64_t rows = args.parts.rows.at(static_cast<std::size_t>(i));
      copy_rows(context, buffers.take<std::byte>(), out, rows, bytes);
      out += static_cast<std::size_t>(rows) * bytes;
    }
  }
};

}  // namespace

void submit_qkv_split(const QkvSplitArgs& args, const QkvSplitHandles& handles,
                      std::span<const QkvPart> parts) {
  static const auto codelet = Codelet<QkvSplitArgs>::with_all<RunSplit>("qkv_split");
  AccessList accesses{reads(handles.batch), reads(handles.x)};
  accesses.add_if(args.shape.rope, reads(handles.rope));
  accesses.add(reads(handles.vectors));
  accesses.add(reads(handles.weight));
  for (const QkvPart& part : parts) {
    accesses.add(writes(part.q));
    accesses.add(writes(part.new_kv));
  }
  codelet.submit(args.shape.dtype, args, accesses);
}

void submit_attention_join(const AttentionJoinArgs& args, std::span<const DataHandle* const> parts,
                           const DataHandle& out) {
  static const auto codelet = Codelet<AttentionJoinArgs>::with_all<RunJoin>("attention_join");
  AccessList accesses{writes(out)};
  for (const DataHandle* part : parts) accesses.add(reads(*part));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
