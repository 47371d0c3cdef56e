#include "codelets/embedding/embedding.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct EmbeddingTask {
  using Args = EmbeddingArgs;
  using Handles = EmbeddingHandles;
  using Operands = EmbeddingOperands;
  static constexpr const char* name = "embedding";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::slot_tokens, &Operands::slot_tokens);
    data.reads(&Handles::table, &Operands::table);
    data.reads_if(args.learned_positions, &Handles::positions, &Operands::positions);
    data.reads_if(args.project_in, &Handles::project_in, &Operands::project_in, args.projection);
    data.reads_if(args.shape.rope, &Handles::frequencies, &Operands::frequencies);
    data.writes(&Handles::x, &Operands::x);
    data.writes_if(args.shape.rope, &Handles::rope, &Operands::rope);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { embedding_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().embedding(gpu, operands);
  }
};

}  // namespace

void submit_embedding(const EmbeddingArgs& args, const EmbeddingHandles& handles) {
  if (args.shape.rope && args.shape.rotated_dims() % 2 != 0) {
    throw Error("rotary embedding needs an even number of dimensions, found {}",
                args.shape.rotated_dims());
  }
  submit_task<EmbeddingTask>(args.shape.dtype, args, handles);
}

}  // namespace sluice
