#include "codelets/sampling/sampling.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct SamplingTask {
  using Args = SamplingArgs;
  using Handles = SamplingHandles;
  using Operands = SamplingOperands;
  static constexpr const char* name = "sampling";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads_if(args.has_logits, &Handles::logits, &Operands::logits);
    data.updates_if(args.track_seen, &Handles::seen, &Operands::seen);
    data.updates_if(args.count_output, &Handles::output_counts, &Operands::output_counts);
    data.updates(&Handles::slot_tokens, &Operands::slot_tokens);
    data.writes(&Handles::tokens, &Operands::tokens);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { sampling_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().sampling(gpu, operands, nullptr);
  }
};

}  // namespace

void submit_sampling(DType dtype, const SamplingArgs& args, const SamplingHandles& handles) {
  submit_task<SamplingTask>(dtype, args, handles);
}

}  // namespace sluice
