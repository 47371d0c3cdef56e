#include "codelets/logprobs/logprobs.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

bool are_drawn(const LogprobsArgs& args) { return args.of == LogprobsOf::drawn_tokens; }

struct LogprobsTask {
  using Args = LogprobsArgs;
  using Handles = LogprobsHandles;
  using Operands = LogprobsOperands;
  static constexpr const char* name = "logprobs";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::logits, &Operands::logits);
    data.reads_if(are_drawn(args), &Handles::tokens, &Operands::tokens);
    data.writes(&Handles::out, &Operands::out);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { logprobs_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().logprobs(gpu, operands);
  }
};

}  // namespace

void submit_logprobs(DType dtype, const LogprobsArgs& args, const LogprobsHandles& handles) {
  submit_task<LogprobsTask>(dtype, args, handles);
}

}  // namespace sluice
