#include "codelets/logprobs/logprobs.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

bool are_drawn(const LogprobsArgs& args) { return args.of == LogprobsOf::drawn_tokens; }

struct Run {
  template <typename Context>
  void operator()(const Context& context, const LogprobsArgs& args, Buffers buffers) const {
    LogprobsOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.logits = buffers.take<float>();
    operands.tokens = buffers.take_if<std::int32_t>(are_drawn(args));
    operands.out = buffers.take<TokenLogprob>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().logprobs(context, operands);
    } else {
      logprobs_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_logprobs(DType dtype, const LogprobsArgs& args, const LogprobsHandles& handles) {
  static const auto codelet = Codelet<LogprobsArgs>::with_all<Run>("logprobs");
  AccessList accesses{reads(handles.batch), reads(handles.logits)};
  accesses.add_if(are_drawn(args), reads(handles.tokens));
  accesses.add(writes(handles.out));
  codelet.submit(dtype, args, accesses);
}

}  // namespace sluice
