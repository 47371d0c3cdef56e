#include "codelets/experts/experts.h"

#include "base/error.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

/// As a CUDA graph where the run makes some.
void run_recurring(const cuda::Context& gpu, const ExpertsOperands& operands) {
  const ExpertsArgs& args = *operands.args;
  TaskKey key;
  key.add(args.shape);
  key.add(args.mixture);
  key.add(args.layout);
  key.add(args.chunks);
  key.add(args.first_chunk);
  key.add(args.sum);
  key.add(args.tag.layer);
  key.add(args.tag.num_tokens);
  key.add(operands.normed);
  key.add(static_cast<const void*>(operands.routing));
  key.add(operands.places);
  key.add(operands.chunks.front());
  key.add(operands.sum);
  gpu_kernels().run_in_graph(gpu, std::move(key), [&] { gpu_kernels().experts(gpu, operands); });
}

struct ExpertsTask {
  using Args = ExpertsArgs;
  using Handles = ExpertsHandles;
  using Operands = ExpertsOperands;
  static constexpr const char* name = "experts";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::normed, &Operands::normed);
    data.reads(&Handles::routing, &Operands::routing);
    data.reads_if(args.chunks.num_hot > 0, &Handles::places, &Operands::places);
    data.reads_each(args.chunks_of_task(), &Handles::chunks, &Operands::chunks);
    if (args.sum == Args::Sum::written) {
      data.writes(&Handles::sum, &Operands::sum);
    } else {
      data.updates(&Handles::sum, &Operands::sum);
    }
  }
  static void run(const CpuContext& cpu, const Operands& operands) { experts_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    if (operands.args->chunks_of_task() != 1) {
      throw Error("a GPU's task has one chunk of experts, not {}", operands.args->chunks_of_task());
    }
    if (operands.args->recurs) return run_recurring(gpu, operands);
    gpu_kernels().experts(gpu, operands);
  }
};

}  // namespace

void submit_experts(const ExpertsArgs& args, const ExpertsHandles& handles) {
  submit_task<ExpertsTask>(args.shape.dtype, args, handles, args.layout.fc1.format);
}

}  // namespace sluice
