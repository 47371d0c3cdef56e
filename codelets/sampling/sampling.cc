#include "codelets/sampling/sampling.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const SamplingArgs& args, Buffers buffers) const {
    SamplingOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.logits = buffers.take_if<float>(args.has_logits);
    operands.seen = buffers.take_if<std::uint32_t>(args.track_seen);
    operands.output_counts = buffers.take_if<std::int32_t>(args.count_output);
    operands.slot_tokens = buffers.take<std::int32_t>();
    operands.tokens = buffers.take<std::int32_t>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().sampling(context, operands, nullptr);
    } else {
      sampling_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_sampling(DType dtype, const SamplingArgs& args, const SamplingHandles& handles) {
  static const auto codelet = Codelet<SamplingArgs>::with_all<Run>("sampling");
  AccessList accesses{reads(handles.batch)};
  accesses.add_if(args.has_logits, reads(handles.logits));
  accesses.add_if(args.track_seen, updates(handles.seen));
  accesses.add_if(args.count_output, updates(handles.output_counts));
  accesses.add(updates(handles.slot_tokens));
  accesses.add(writes(handles.tokens));
  codelet.submit(dtype, args, accesses);
}

}  // namespace sluice
