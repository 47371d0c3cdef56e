#include "codelets/kv_move/kv_move.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const KvMoveArgs& args, Buffers buffers) const {
    KvMoveOperands operands{.args = &args};
    operands.pages = buffers.take<std::int32_t>();
    operands.slab = buffers.take<std::byte>();
    operands.moved = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().kv_move(context, operands);
    } else {
      kv_move_cpu(context, operands);
    }
  }
};

void check_size(const DataHandle& handle, std::size_t expected_bytes, const char* what) {
  if (handle.size_bytes() != expected_bytes)
    throw Error("{} of a move take {} bytes, not {}", what, expected_bytes, handle.size_bytes());
}

}  // namespace

void submit_kv_move(const KvMoveArgs& args, const KvMoveHandles& handles, DType dtype) {
  static const auto gather = Codelet<KvMoveArgs>::with_all<Run>("kv_gather");
  static const auto scatter = Codelet<KvMoveArgs>::with_all<Run>("kv_scatter");
  const auto pages = static_cast<std::size_t>(args.num_pages);
  check_size(handles.pages, pages * sizeof(std::int32_t), "page numbers");
  check_size(handles.moved, pages * args.page_bytes, "pages");
  if (args.step == KvMoveArgs::Step::gather) {
    gather.submit(dtype, args, {reads(handles.pages), reads(handles.slab), writes(handles.moved)});
  } else {
    scatter.submit(dtype, args,
                   {reads(handles.pages), updates(handles.slab), reads(handles.moved)});
  }
}

}  // namespace sluice
