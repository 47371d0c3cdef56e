#include "codelets/expert_join/expert_join.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct ExpertJoinTask {
  using Args = ExpertJoinArgs;
  using Handles = ExpertJoinHandles;
  using Operands = ExpertJoinOperands;
  static constexpr const char* name = "expert_join";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::sum, &Operands::sum);
    data.reads_if(args.has_hot_sum, &Handles::hot_sum, &Operands::hot_sum);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.updates(&Handles::x, &Operands::x);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    expert_join_cpu(cpu, operands);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().expert_join(gpu, operands);
  }
};

}  // namespace

void submit_expert_join(const ExpertJoinArgs& args, const ExpertJoinHandles& handles) {
  submit_task<ExpertJoinTask>(args.shape.dtype, args, handles);
}

}  // namespace sluice
