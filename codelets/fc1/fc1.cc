#include "codelets/fc1/fc1.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const Fc1Args& args, Buffers buffers) const {
    Fc1Operands operands{.args = &args};
    operands.x = buffers.take<float>();
    operands.vectors = buffers.take<float>();
    operands.weight = {args.weight, buffers.take<std::byte>()};
    operands.gate = {args.gate, buffers.take_if<std::byte>(args.shape.gated_ffn)};
    operands.h = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().fc1(context, operands);
    } else {
      fc1_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_fc1(const Fc1Args& args, const Fc1Handles& handles) {
  static const auto codelet = Codelet<Fc1Args>::with_all<Run>("fc1");
  AccessList accesses{reads(handles.x), reads(handles.vectors), reads(handles.weight)};
  accesses.add_if(args.shape.gated_ffn, reads(handles.gate));
  accesses.add(writes(handles.h));
  codelet.submit(args.shape.dtype, args, accesses, args.weight.format);
}

}  // namespace sluice
