#include "codelets/lm_head/lm_head.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

bool has_norm_vectors(const LmHeadArgs& args) { return args.final_norm && args.norm_weight; }

struct LmHeadTask {
  using Args = LmHeadArgs;
  using Handles = LmHeadHandles;
  using Operands = LmHeadOperands;
  static constexpr const char* name = "lm_head";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::x, &Operands::x);
    data.reads_if(has_norm_vectors(args), &Handles::final_norm, &Operands::final_norm);
    data.reads_if(args.project_out, &Handles::project_out, &Operands::project_out, args.projection);
    data.reads(&Handles::head, &Operands::head, args.head);
    data.writes(&Handles::logits, &Operands::logits);
  }
  /// The first of the task's rows may stand behind others.
  static Operands of_rows(Operands operands) {
    operands.x += operands.args->first_row * operands.args->shape.hidden_size;
    return operands;
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    lm_head_cpu(cpu, of_rows(operands));
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().lm_head(gpu, of_rows(operands));
  }
};

}  // namespace

void submit_lm_head(const LmHeadArgs& args, const LmHeadHandles& handles) {
  submit_task<LmHeadTask>(args.shape.dtype, args, handles, args.head.format);
}

}  // namespace sluice
