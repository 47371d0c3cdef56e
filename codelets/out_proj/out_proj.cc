#include "codelets/out_proj/out_proj.h"

#include "codelets/runtime/codelet.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const OutProjArgs& args, Buffers buffers) {
  OutProjOperands operands{.args = &args};
  operands.attention = buffers.take<std::byte>();
  operands.vectors = buffers.take<float>();
  operands.weight = buffers.take<std::byte>();
  operands.x = buffers.take<float>();
  out_proj_cpu(cpu, operands);
}

}  // namespace

void submit_out_proj(const OutProjArgs& args, const OutProjHandles& handles) {
  static const auto codelet = Codelet<OutProjArgs>::with_cpu<run>("out_proj");
  codelet.submit(args.shape.dtype, args,
                 {reads(handles.attention), reads(handles.vectors), reads(handles.weight),
                  updates(handles.x)});
}

}  // namespace sluice
