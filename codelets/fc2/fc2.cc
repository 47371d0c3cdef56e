#include "codelets/fc2/fc2.h"

#include "codelets/runtime/codelet.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const Fc2Args& args, Buffers buffers) {
  Fc2Operands operands{.args = &args};
  operands.h = buffers.take<std::byte>();
  operands.vectors = buffers.take<float>();
  operands.weight = buffers.take<std::byte>();
  operands.x = buffers.take<float>();
  fc2_cpu(cpu, operands);
}

}  // namespace

void submit_fc2(const Fc2Args& args, const Fc2Handles& handles) {
  static const auto codelet = Codelet<Fc2Args>::with_cpu<run>("fc2");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.h), reads(handles.vectors), reads(handles.weight), updates(handles.x)});
}

}  // namespace sluice
