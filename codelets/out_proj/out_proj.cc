#include "codelets/out_proj/out_proj.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const OutProjArgs& args, Buffers buffers) const {
    OutProjOperands operands{.args = &args};
    operands.attention = buffers.take<std::byte>();
    operands.vectors = buffers.take<float>();
    operands.weight = {args.weight, buffers.take<std::byte>()};
    operands.x = buffers.take<float>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().out_proj(context, operands);
    } else {
      out_proj_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_out_proj(const OutProjArgs& args, const OutProjHandles& handles) {
  static const auto codelet = Codelet<OutProjArgs>::with_all<Run>("out_proj");
  codelet.submit(
      args.shape.dtype, args,
      {reads(handles.attention), reads(handles.vectors), reads(handles.weight), updates(handles.x)},
      args.weight.format);
}

}  // namespace sluice
