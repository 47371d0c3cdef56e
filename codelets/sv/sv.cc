#include "codelets/sv/sv.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/kv_access.h"

namespace sluice {
namespace {

constexpr SublayerRange sv_alone{Sublayer::sv, Sublayer::sv};

struct Run {
  template <typename Context>
  void operator()(const Context& context, const AttentionArgs& args, Buffers buffers) const {
    SvOperands operands{.args = &args};
    const BatchView batch(buffers.take<void>());
    operands.scores = buffers.take<float>();
    const KvBuffers kv = KvAccess(args.kv, sv_alone).take_from(buffers);
    operands.out = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      operands.batch = batch;
      operands.slab = kv.slab;
      operands.new_kv = kv.new_kv;
      gpu_kernels().sv(context, operands);
    } else {
      const AttentionKv readable(context, args.shape, args.kv, batch, kv);
      operands.batch = readable.batch();
      operands.slab = readable.slab();
      sv_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_sv(const AttentionArgs& args, const SvHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_all<Run>("sv");
  AccessList accesses{reads(handles.batch), reads(handles.scores)};
  KvAccess(args.kv, sv_alone).add_to(accesses, handles.slab, handles.new_kv);
  accesses.add(writes(handles.out));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
