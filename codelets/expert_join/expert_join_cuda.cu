#include "codelets/cuda/device.h"
#include "codelets/cuda/norm.h"
#include "codelets/expert_join/expert_join.h"

namespace sluice {
namespace {

/// A thread an element.
__global__ void add_sum(const float* sum, const float* hot_sum, float* x, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) x[i] += hot_sum == nullptr ? sum[i] : sum[i] + hot_sum[i];
}

}  // namespace

void expert_join_cuda(const cuda::Context& gpu, const ExpertJoinOperands& operands) {
  const ExpertJoinArgs& args = *operands.args;
  const std::int64_t rows = args.tag.num_tokens;
  const std::int64_t count = rows * args.shape.hidden_size;
  constexpr int threads = 256;
  cuda::launch("add_sum", add_sum,
               {.blocks = dim3(static_cast<unsigned>((count + threads - 1) / threads)),
                .threads = dim3(threads)},
               gpu.stream, operands.sum, operands.hot_sum, operands.x, count);
  cuda::block_output(gpu, args.shape,
                     {VectorLayout::at(operands.vectors, args.vectors.ffn_norm_weight),
                      VectorLayout::at(operands.vectors, args.vectors.ffn_norm_bias)},
                     operands.x, rows);
}

}  // namespace sluice
