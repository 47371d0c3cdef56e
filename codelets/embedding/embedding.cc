#include "codelets/embedding/embedding.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const EmbeddingArgs& args, Buffers buffers) const {
    EmbeddingOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.slot_tokens = buffers.take<std::int32_t>();
    operands.table = buffers.take<std::byte>();
    operands.positions = buffers.take_if<std::byte>(args.learned_positions);
    operands.project_in = {args.projection, buffers.take_if<std::byte>(args.project_in)};
    operands.frequencies = buffers.take_if<float>(args.shape.rope);
    operands.x = buffers.take<float>();
    operands.rope = buffers.take_if<float>(args.shape.rope);
    if constexpr (is_gpu<Context>) {
      gpu_kernels().embedding(context, operands);
    } else {
      embedding_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_embedding(const EmbeddingArgs& args, const EmbeddingHandles& handles) {
  if (args.shape.rope && args.shape.head_dim % 2 != 0) {
    throw Error("rotary embedding needs an even head_dim, found {}", args.shape.head_dim);
  }
  static const auto codelet = Codelet<EmbeddingArgs>::with_all<Run>("embedding");
  AccessList accesses{reads(handles.batch), reads(handles.slot_tokens), reads(handles.table)};
  accesses.add_if(args.learned_positions, reads(handles.positions));
  accesses.add_if(args.project_in, reads(handles.project_in));
  accesses.add_if(args.shape.rope, reads(handles.frequencies));
  accesses.add(writes(handles.x));
  accesses.add_if(args.shape.rope, writes(handles.rope));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
