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

constexpr float least_sum = 1e-20F;  ///< added to the sum of sigmoids, as Transformers does

/// Larger values come first; of equal ones the lower number.
__device__ bool comes_before(const float* values, int a, int b) {
  const std::uint32_t of_a = cuda::ordered_bits(values[a]);
  const std::uint32_t of_b = cuda::ordered_bits(values[b]);
  return of_a > of_b || (of_a == of_b && a < b);
}

/// Whether fewer than `most` of `count` values come before that one.
__device__ bool is_among(const float* values, int count, int most, int one) {
  int rank = 0;
  for (int other = 0; other < count; ++other) rank += comes_before(values, other, one);
  return rank < most;
}

/// Writes the experts_per_token largest of values [num_experts], by number. All threads of a block.
template <typename WeightOf>
__device__ void write_largest(const MixtureShape& mixture, const float* values,
                              ExpertChoice* chosen, const WeightOf& weight_of) {
  const int num_experts = mixture.num_experts;
  int before = 0;  // chosen ones of lower numbers
  for (int first = 0; first < num_experts; first += choosing_threads) {
    const int e = first + static_cast<int>(threadIdx.x);
    const bool is_chosen =
        e < num_experts && is_among(values, num_experts, mixture.experts_per_token, e);
    int of_block = 0;
    const int at = before + cuda::block_exclusive_sum(is_chosen ? 1 : 0, &of_block);
    if (is_chosen) chosen[at] = {e, weight_of(e)};
    before += of_block;
  }
}

struct ChooseCall {
  MixtureShape mixture;
  const float* logits;      ///< [rows, num_experts]
  const float* correction;  ///< [num_experts] or null
  ExpertChoice* routing;    ///< [rows, experts_per_token]
  std::int64_t layer;
  cuda::DeviceFailure* failure;

  __device__ float logit_of(int expert) const {
    const float logit =
        logits[static_cast<std::int64_t>(blockIdx.x) * mixture.num_experts + expert];
    if (!(fabsf(logit) < INFINITY))
      cuda::record(failure, cuda::DeviceFailure::router_logit_not_finite, blockIdx.x, layer);
    return logit;
  }
  __device__ ExpertChoice* chosen() const {
    return routing + static_cast<std::int64_t>(blockIdx.x) * mixture.experts_per_token;
  }
};

/// A block a row. An expert is chosen if few enough come before it.
__global__ void choose_experts_of_rows(ChooseCall call) {
  const MixtureShape& mixture = call.mixture;
  const int num_experts = mixture.num_experts;
  auto* logits = cuda::dynamic_shared<float>();
  float largest = -INFINITY;
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += choosing_threads) {
    logits[e] = call.logit_of(e);
    largest = fmaxf(largest, logits[e]);
  }
  largest = cuda::block_reduce(largest, [](float a, float b) { return fmaxf(a, b); });
  ExpertChoice* chosen = call.chosen();
  write_largest(mixture, logits, chosen, [&](int e) { return expf(logits[e] - largest); });
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += choosing_threads)
    sum += expf(logits[e] - largest);
  sum = cuda::block_reduce(sum, [](float a, float b) { return a + b; });  // and all have written
  if (threadIdx.x != 0) return;
  if (mixture.router != RouterKind::softmax_first || mixture.norm_chosen) {
    sum = 0;
    for (int i = 0; i < mixture.experts_per_token; ++i) sum += chosen[i].weight;
  }
  for (int i = 0; i < mixture.experts_per_token; ++i) chosen[i].weight /= sum;
}

__device__ float sigmoid(float logit) { return 1 / (1 + expf(-logit)); }

/// Sets to minus infinity what lies outside of the best groups; `of_groups` [num_groups] is shared
/// memory, too.
__device__ void leave_groups_out(const MixtureShape& mixture, float* values, float* of_groups) {
  const int size = mixture.experts_per_group();
  for (int g = static_cast<int>(threadIdx.x); g < mixture.num_groups; g += choosing_threads) {
    float largest = -INFINITY;
    float second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(largest, values[e]));
      largest = fmaxf(largest, values[e]);
    }
    of_groups[g] = largest + second;
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < mixture.num_experts; e += choosing_threads) {
    if (!is_among(of_groups, mixture.num_groups, mixture.groups_per_token, e / size))
      values[e] = -INFINITY;
  }
  __syncthreads();
}

/// The same by sigmoids, corrected for the choice, within the best groups.
__global__ void choose_by_sigmoid(ChooseCall call) {
  const MixtureShape& mixture = call.mixture;
  const int num_experts = mixture.num_experts;
  auto* values = cuda::dynamic_shared<float>();
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += choosing_threads) {
    values[e] = sigmoid(call.logit_of(e)) + (call.correction == nullptr ? 0 : call.correction[e]);
  }
  __syncthreads();
  if (mixture.groups_per_token < mixture.num_groups)
    leave_groups_out(mixture, values, values + num_experts);
  ExpertChoice* chosen = call.chosen();
  write_largest(mixture, values, chosen, [&](int e) { return sigmoid(call.logit_of(e)); });
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int i = 0; i < mixture.experts_per_token; ++i) sum += chosen[i].weight;
  for (int i = 0; i < mixture.experts_per_token; ++i) {
    if (mixture.norm_chosen) chosen[i].weight /= sum + least_sum;
    chosen[i].weight *= mixture.routed_scaling;
  }
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
  const ChooseCall choose{
      .mixture = args.mixture,
      .logits = logits,
      .correction = VectorLayout::at(operands.vectors, args.vectors.router_correction),
      .routing = operands.routing,
      .layer = args.tag.layer,
      .failure = gpu.failure};
  const auto floats = static_cast<std::size_t>(args.mixture.num_experts + args.mixture.num_groups);
  cuda::launch(
      "choose_experts",
      args.mixture.router == RouterKind::sigmoid ? choose_by_sigmoid : choose_experts_of_rows,
      {.blocks = dim3(static_cast<unsigned>(rows)),
       .threads = dim3(choosing_threads),
       .dynamic_bytes = floats * sizeof(float)},
      gpu.stream, choose);
}

}  // namespace sluice
