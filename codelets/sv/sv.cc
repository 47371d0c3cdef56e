#include "codelets/sv/sv.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const AttentionArgs& args, Buffers buffers) {
  SvOperands operands{.args = &args};
  operands.batch = BatchView(buffers.take<void>());
  operands.scores = buffers.take<float>();
  operands.slab = buffers.take<std::byte>();
  operands.out = buffers.take<std::byte>();
  sv_cpu(cpu, operands);
}

}  // namespace

void submit_sv(const AttentionArgs& args, const SvHandles& handles) {
  static const auto codelet = Codelet<AttentionArgs>::with_cpu<run>("sv");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.batch), reads(handles.scores), reads(handles.slab), writes(handles.out)});
}

}  // namespace sluice
