#include "codelets/out_proj/out_proj.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct OutProjTask {
  using Args = OutProjArgs;
  using Handles = OutProjHandles;
  using Operands = OutProjOperands;
  static constexpr const char* name = "out_proj";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::attention, &Operands::attention);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.updates(&Handles::x, &Operands::x);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { out_proj_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().out_proj(gpu, operands);
  }
};

}  // namespace

void submit_out_proj(const OutProjArgs& args, const OutProjHandles& handles) {
  submit_task<OutProjTask>(args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
