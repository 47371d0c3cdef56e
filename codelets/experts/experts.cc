#include "codelets/experts/experts.h"

#include "base/error.h"
#include "codelets/runtime/operands.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

struct ExpertsTask {
  using Args = ExpertsArgs;
  using Handles = ExpertsHandles;
  using Operands = ExpertsOperands;

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::normed, &Operands::normed);
    data.reads(&Handles::routing, &Operands::routing);
    data.reads_each(args.chunks.count(), &Handles::chunks, &Operands::chunks);
    data.writes(&Handles::sum, &Operands::sum);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { experts_cpu(cpu, operands); }
};

void run(const CpuContext& cpu, const ExpertsArgs& args, Buffers buffers) {
  RunTask<ExpertsTask>{}(cpu, args, buffers);
}

}  // namespace

void submit_experts(const ExpertsArgs& args, const ExpertsHandles& handles) {
  if (args.tag.device == Device::gpu && runs_cuda_kernels()) {
    throw Error(
        "layer {}: experts do not run on a GPU yet; place sublayers 5 and 6 on the CPU, as "
        "--policy lia --policy-option prefill=000011 --policy-option decode=000011 does",
        args.tag.layer);
  }
  static const auto codelet = Codelet<ExpertsArgs>::with_cpu<run>("experts");
  submit_to<ExpertsTask>(codelet, args.shape.dtype, args, handles, args.layout.fc1.format);
}

}  // namespace sluice
