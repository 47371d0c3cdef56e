#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/cuda/ordered.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/router/router.h"

namespace sluice {
namespace {

constexpr int choosing_threads = 128;

/// Larger logits come first; of equal ones the lower number.
__device__ bool comes_before(const float* logits, int a, int b) {
  const std::uint32_t of_a = cuda::ordered_bits(logits[a]);
  const std::uint32_t of_b = cuda::ordered_bits(logits[b]);
  return of_a > of_b || (of_a == of_b && a < b);
}

/// A block a row. An expert is chosen if few enough come before it.
__global__ void choose_experts(MixtureShape mixture, const float* all_logits, ExpertChoice* routing,
                               std::int64_t layer, cuda::DeviceFailure* failure) {
  const int num_experts = mixture.num_experts;
  const int count = mixture.experts_per_token;
  auto* logits = cuda::dynamic_shared<float>();
  float largest = -INFINITY;
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += choosing_threads) {
    const float logit = all_logits[static_cast<std::int64_t>(blockIdx.x) * num_experts + e];
    logits[e] = logit;
    largest = fmaxf(largest, logit);
    if (!(fabsf(logit) < INFINITY))
      cuda::record(failure, cuda::DeviceFailure::router_logit_not_finite, blockIdx.x, layer);
  }
  largest = cuda::block_reduce(largest, [](float a, float b) { return fmaxf(a, b); });
  ExpertChoice* chosen = routing + static_cast<std::int64_t>(blockIdx.x) * count;
  int before = 0;  // chosen ones of lower numbers
  float sum = 0;
  for (int first = 0; first < num_experts; first += choosing_threads) {
    const int e = first + static_cast<int>(threadIdx.x);
    bool is_chosen = e < num_experts;
    if (is_chosen) {
      int rank = 0;
      for (int other = 0; other < num_experts; ++other) rank += comes_before(logits, other, e);
      is_chosen = rank < count;
      sum += expf(logits[e] - largest);
    }
    int of_block = 0;
    const int at = before + cuda::block_exclusive_sum(is_chosen ? 1 : 0, &of_block);
    if (is_chosen) chosen[at] = {e, expf(logits[e] - largest)};
    before += of_block;
  }
  sum = cuda::block_reduce(sum, [](float a, float b) { return a + b; });  // and all have written
  if (threadIdx.x != 0) return;
  if (mixture.router != RouterKind::softmax_first || mixture.norm_chosen) {
    sum = 0;
    for (int i = 0; i < count; ++i) sum += chosen[i].weight;
  }
  for (int i = 0; i < count; ++i) chosen[i].weight /= sum;
}

}  // namespace

void router_cuda(const cuda::Context& gpu, const RouterOperands& operands) {
  const RouterArgs& args = *operands.args;
  const DecoderShape& shape = args.shape;
  const std::int64_t rows = args.tag.num_tokens;
  cuda::block_input(gpu, shape,
                    {VectorLayout::at(operands.vectors, args.vectors.ffn_norm_weight),
                     VectorLayout::at(operands.vectors, args.vectors.ffn_norm_bias)},
                    operands.x, rows, operands.normed);
  LinearCall call{.weight = operands.weight,
                  .dtype = shape.dtype,
                  .x = operands.normed,
                  .rows = rows,
                  .x_stride = activation_stride(shape.hidden_size, shape.dtype),
                  .bias = VectorLayout::at(operands.vectors, args.vectors.router_bias)};
  cuda::WorkspaceLayout layout;
  const std::size_t logits_at = layout.place<float>(rows * args.mixture.num_experts);
  const std::size_t scratch_at =
      layout.place<std::byte>(static_cast<std::int64_t>(cuda::linear_scratch_bytes(gpu, call)));
  std::byte* workspace = gpu.workspace.reserve(layout.bytes());
  auto* logits = reinterpret_cast<float*>(workspace + logits_at);
  call.dst = logits;
  cuda::linear(gpu, call, workspace + scratch_at);
  cuda::launch(
      "choose_experts", choose_experts,
      {.blocks = dim3(static_cast<unsigned>(rows)),
       .threads = dim3(choosing_threads),
       .dynamic_bytes = static_cast<std::size_t>(args.mixture.num_experts) * sizeof(float)},
      gpu.stream, args.mixture, logits, operands.routing, std::int64_t{args.tag.layer},
      gpu.failure);
}

}  // namespace sluice
