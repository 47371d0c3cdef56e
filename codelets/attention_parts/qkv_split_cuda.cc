#include "codelets/attention_parts/attention_parts.h"
#include "codelets/cuda/context.h"
#include "codelets/cuda/workspace_layout.h"

namespace sluice {

void qkv_split_cuda(const cuda::Context& gpu, const QkvSplitOperands& operands) {
  const QkvSplitArgs& args = *operands.args;
  const std::int64_t rows = args.tag.num_tokens;
  const std::size_t element = size_bytes(args.shape.dtype);
  cuda::WorkspaceLayout layout;
  layout.place<std::byte>(rows * args.shape.q_size() * static_cast<std::int64_t>(element));
  const std::size_t new_kv_at =
      layout.place<std::byte>(rows * 2 * args.shape.kv_size() * static_cast<std::int64_t>(element));
  std::byte* memory = gpu.workspace.reserve(layout.bytes());

  const QkvArgs qkv{args.tag, args.shape, args.vectors, KvPath::new_kv};
  const cuda::Context inner = gpu.with_workspace(gpu.workspace.inner());
  qkv_cuda(inner, {.args = &qkv,
                   .batch = operands.batch,
                   .x = operands.x,
                   .rope = operands.rope,
                   .vectors = operands.vectors,
                   .weight = operands.weight,
                   .q = memory,
                   .slab = nullptr,
                   .new_kv = memory + new_kv_at});
  split_rows_cuda(gpu, operands, memory, memory + new_kv_at);
}

}  // namespace sluice
