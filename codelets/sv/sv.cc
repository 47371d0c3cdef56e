#include "codelets/sv/sv.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/kv_access.h"

namespace sluice {
namespace {

constexpr SublayerRange sv_alone{Sublayer::sv, Sublayer::sv};

void run(const CpuContext& cpu, const AttentionArgs& args, Buffers buffers) {
  SvOperands operands{.args = &args};
  const BatchView batch(buffers.take<void>());
  operands.scores = buffers.take<float>();
  const KvBuffers kv = KvAccess(args.kv, sv_alone).take_from(buffers);
  operands.out = buffers.take<std::byte>();
  const AttentionKv readable(cpu, args.shape, args.kv, batch, kv);
  operands.batch = readable.batch();
  operands.slab = readable.slab();
  sv_cpu(cpu, operands);
}

}  // namespace

void submit_sv(const AttentionArgs& args, const SvHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_cpu<run>("sv");
  AccessList accesses{reads(handles.batch), reads(handles.scores)};
  KvAccess(args.kv, sv_alone).add_to(accesses, handles.slab, handles.new_kv);
  accesses.add(writes(handles.out));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
