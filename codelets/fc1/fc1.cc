#include "codelets/fc1/fc1.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct Fc1Task {
  using Args = Fc1Args;
  using Handles = Fc1Handles;
  using Operands = Fc1Operands;
  static constexpr const char* name = "fc1";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::x, &Operands::x);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.reads_if(args.shape.gated_ffn, &Handles::gate, &Operands::gate, args.gate);
    data.writes(&Handles::h, &Operands::h);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { fc1_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().fc1(gpu, operands);
  }
};

}  // namespace

void submit_fc1(const Fc1Args& args, const Fc1Handles& handles) {
  submit_task<Fc1Task>(args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
