#include "codelets/fc2/fc2.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const Fc2Args& args, Buffers buffers) const {
    Fc2Operands operands{.args = &args};
    operands.h = buffers.take<std::byte>();
    operands.vectors = buffers.take<float>();
    operands.weight = {args.weight, buffers.take<std::byte>()};
    operands.x = buffers.take<float>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().fc2(context, operands);
    } else {
      fc2_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_fc2(const Fc2Args& args, const Fc2Handles& handles) {
  static const auto codelet = Codelet<Fc2Args>::with_all<Run>("fc2");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.h), reads(handles.vectors), reads(handles.weight), updates(handles.x)},
      args.weight.format);
}

}  // namespace sluice
