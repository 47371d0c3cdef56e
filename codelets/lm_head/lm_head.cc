#include "codelets/lm_head/lm_head.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

bool has_norm_vectors(const LmHeadArgs& args) { return args.final_norm && args.norm_weight; }

struct Run {
  template <typename Context>
  void operator()(const Context& context, const LmHeadArgs& args, Buffers buffers) const {
    LmHeadOperands operands{.args = &args};
    operands.x = buffers.take<float>() + args.first_row * args.shape.hidden_size;
    operands.final_norm = buffers.take_if<float>(has_norm_vectors(args));
    operands.project_out = {args.projection, buffers.take_if<std::byte>(args.project_out)};
    operands.head = {args.head, buffers.take<std::byte>()};
    operands.logits = buffers.take<float>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().lm_head(context, operands);
    } else {
      lm_head_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_lm_head(const LmHeadArgs& args, const LmHeadHandles& handles) {
  static const auto codelet = Codelet<LmHeadArgs>::with_all<Run>("lm_head");
  AccessList accesses{reads(handles.x)};
  accesses.add_if(has_norm_vectors(args), reads(handles.final_norm));
  accesses.add_if(args.project_out, reads(handles.project_out));
  accesses.add(reads(handles.head));
  accesses.add(writes(handles.logits));
  codelet.submit(args.shape.dtype, args, accesses, args.head.format);
}

}  // namespace sluice
