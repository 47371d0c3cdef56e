#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/router/router.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

bool choose_experts(const MixtureShape& mixture, const float* logits, ExpertChoice* chosen) {
  const std::int64_t num_experts = mixture.num_experts;
  const std::int64_t count = mixture.experts_per_token;
  if (simd::find_not_finite(logits, num_experts, DType::f32) >= 0) return false;
  thread_local std::vector<std::int32_t> order;
  order.resize(static_cast<std::size_t>(num_experts));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + count;
  if (count < num_experts) {
    std::nth_element(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
  }
  std::sort(order.begin(), end);
  float largest = logits[order.front()];
  for (auto expert = order.begin(); expert != end; ++expert)
    largest = std::max(largest, logits[*expert]);

  const bool of_all = mixture.router == RouterKind::softmax_first && !mixture.norm_chosen;
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t expert = order[static_cast<std::size_t>(i)];
    chosen[i] = {expert, std::exp(logits[expert] - largest)};
    sum += chosen[i].weight;
  }
  if (of_all) {
    sum = 0;
    for (std::int64_t e = 0; e < num_experts; ++e) sum += std::exp(logits[e] - largest);
  }
  for (std::int64_t i = 0; i < count; ++i) chosen[i].weight /= sum;
  return true;
}

void router_cpu(const CpuContext& cpu, const RouterOperands& operands) {
  const RouterArgs& args = *operands.args;
  const DecoderShape& shape = args.shape;
  const std::int64_t rows = args.tag.num_tokens;
  const std::int64_t num_experts = args.mixture.num_experts;
  block_input(cpu.pool, shape,
              {VectorLayout::at(operands.vectors, args.vectors.ffn_norm_weight),
               VectorLayout::at(operands.vectors, args.vectors.ffn_norm_bias)},
              operands.x, rows, operands.normed);
  auto* logits = reinterpret_cast<float*>(
      cpu.workspace.reserve(static_cast<std::size_t>(rows * num_experts) * sizeof(float)));
  linear(cpu.pool, {.weight = operands.weight,
                    .dtype = shape.dtype,
                    .x = operands.normed,
                    .rows = rows,
                    .x_stride = activation_stride(shape.hidden_size, shape.dtype),
                    .bias = VectorLayout::at(operands.vectors, args.vectors.router_bias),
                    .dst = logits});
  cpu.pool.run(rows, [&](std::int64_t row) {
    if (choose_experts(args.mixture, logits + row * num_experts,
                       operands.routing + row * args.mixture.experts_per_token))
      return;
    throw Error(
        "the router's logits of row {} in layer {} are NaN or infinite: the weights or what came "
        "before overflow; try --dtype f32",
        row, args.tag.layer);
  });
}

}  // namespace sluice
