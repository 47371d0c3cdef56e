#include "codelets/router/router.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct RouterTask {
  using Args = RouterArgs;
  using Handles = RouterHandles;
  using Operands = RouterOperands;
  static constexpr const char* name = "router";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::x, &Operands::x);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.writes(&Handles::normed, &Operands::normed);
    data.writes(&Handles::routing, &Operands::routing);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { router_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().router(gpu, operands);
  }
};

}  // namespace

void submit_router(const RouterArgs& args, const RouterHandles& handles) {
  submit_task<RouterTask>(args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
