#include "codelets/qkv/qkv.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const QkvArgs& args, Buffers buffers) {
  QkvOperands operands{.args = &args};
  operands.batch = BatchView(buffers.take<void>());
  operands.x = buffers.take<float>();
  operands.rope = buffers.take_if<float>(args.shape.rope);
  operands.vectors = buffers.take<float>();
  operands.weight = buffers.take<std::byte>();
  operands.q = buffers.take<std::byte>();
  operands.slab = buffers.take<std::byte>();
  qkv_cpu(cpu, operands);
}

}  // namespace

void submit_qkv(const QkvArgs& args, const QkvHandles& handles) {
  static const auto codelet = Codelet<QkvArgs>::with_cpu<run>("qkv");
  AccessList accesses{reads(handles.batch), reads(handles.x)};
  accesses.add_if(args.shape.rope, reads(handles.rope));
  accesses.add(reads(handles.vectors));
  accesses.add(reads(handles.weight));
  accesses.add(writes(handles.q));
  accesses.add(updates(handles.slab));
  codelet.submit(args.shape.dtype, args, accesses);
}

}  // namespace sluice
