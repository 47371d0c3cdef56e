#include "codelets/fc2/fc2.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct Fc2Task {
  using Args = Fc2Args;
  using Handles = Fc2Handles;
  using Operands = Fc2Operands;
  static constexpr const char* name = "fc2";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::h, &Operands::h);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.updates(&Handles::x, &Operands::x);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { fc2_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().fc2(gpu, operands);
  }
};

}  // namespace

void submit_fc2(const Fc2Args& args, const Fc2Handles& handles) {
  submit_task<Fc2Task>(args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
