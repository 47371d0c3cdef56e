#include "codelets/residual/residual.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct ResidualTask {
  using Args = ResidualArgs;
  using Handles = ResidualHandles;
  using Operands = ResidualOperands;

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::inner, &Operands::inner);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.updates(&Handles::x, &Operands::x);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { residual_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().residual(gpu, operands);
  }
};

}  // namespace

ResidualVectors ResidualVectors::of(const VectorLayout& vectors, Sublayer sublayer) {
  if (sublayer == Sublayer::out_proj)
    return {vectors.out_bias, vectors.attention_norm_weight, vectors.attention_norm_bias};
  return {vectors.fc2_bias, vectors.ffn_norm_weight, vectors.ffn_norm_bias};
}

void submit_residual(const ResidualArgs& args, const ResidualHandles& handles) {
  static const auto out_proj = Codelet<ResidualArgs>::with_all<RunTask<ResidualTask>>("out_proj");
  static const auto fc2 = Codelet<ResidualArgs>::with_all<RunTask<ResidualTask>>("fc2");
  submit_to<ResidualTask>(args.tag.sublayer == Sublayer::out_proj ? out_proj : fc2,
                          args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
