#include "codelets/qkv/qkv.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/kv_access.h"

namespace sluice {
namespace {

constexpr SublayerRange qkv_alone{Sublayer::qkv, Sublayer::qkv};

struct Run {
  template <typename Context>
  void operator()(const Context& context, const QkvArgs& args, Buffers buffers) const {
    QkvOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.x = buffers.take<float>();
    operands.rope = buffers.take_if<float>(args.shape.rope);
    operands.vectors = buffers.take<float>();
    operands.weight = {args.weight, buffers.take<std::byte>()};
    operands.q = buffers.take<std::byte>();
    const KvBuffers kv = KvAccess(args.kv, qkv_alone).take_from(buffers);
    operands.slab = kv.slab;
    operands.new_kv = kv.new_kv;
    if constexpr (is_gpu<Context>) {
      gpu_kernels().qkv(context, operands);
    } else {
      qkv_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_qkv(const QkvArgs& args, const QkvHandles& handles) {
  static const auto codelet = Codelet<QkvArgs>::with_all<Run>("qkv");
  AccessList accesses{reads(handles.batch), reads(handles.x)};
  accesses.add_if(args.shape.rope, reads(handles.rope));
  accesses.add(reads(handles.vectors));
  accesses.add(reads(handles.weight));
  accesses.add(writes(handles.q));
  KvAccess(args.kv, qkv_alone).add_to(accesses, handles.slab, handles.new_kv);
  codelet.submit(args.shape.dtype, args, accesses, args.weight.format);
}

}  // namespace sluice
