#include "codelets/shared_ffn/shared_ffn.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct SharedFfnTask {
  using Args = SharedFfnArgs;
  using Handles = SharedFfnHandles;
  using Operands = SharedFfnOperands;
  static constexpr const char* name = "shared_ffn";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::normed, &Operands::normed);
    data.reads_if(args.shape.gated_ffn, &Handles::gate, &Operands::gate, args.gate);
    data.reads(&Handles::fc1, &Operands::fc1, args.fc1);
    data.reads(&Handles::fc2, &Operands::fc2, args.fc2);
    data.updates(&Handles::x, &Operands::x);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    shared_ffn_cpu(cpu, operands);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().shared_ffn(gpu, operands);
  }
};

}  // namespace

void submit_shared_ffn(const SharedFfnArgs& args, const SharedFfnHandles& handles) {
  submit_task<SharedFfnTask>(args.shape.dtype, args, handles, args.fc1.format);
}

}  // namespace sluice
