#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/router/router.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();
constexpr float least_sum = 1e-20F;  ///< added to the sum of sigmoids, as Transformers does

/// The numbers of the `count` largest of `values`, of equal ones the lower ones, in their order:
/// the first ones of `order`.
void take_largest(std::span<const float> values, std::int64_t count,
                  std::vector<std::int32_t>& order) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + count;
  if (end == order.end()) return;
  const auto comes_first = [&](std::int32_t a, std::int32_t b) {
    const float of_a = values[static_cast<std::size_t>(a)];
    const float of_b = values[static_cast<std::size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  std::nth_element(order.begin(), end, order.end(), comes_first);
  std::sort(order.begin(), end);
}

float sigmoid(float logit) { return 1 / (1 + std::exp(-logit)); }

/// Sets to minus infinity what lies outside of the best groups.
void leave_groups_out(const MixtureShape& mixture, std::vector<float>& values) {
  if (mixture.groups_per_token == mixture.num_groups) return;
  const auto size = static_cast<std::ptrdiff_t>(mixture.experts_per_group());
  thread_local std::vector<float> of_groups;
  of_groups.clear();
  for (auto first = values.begin(); first != values.end(); first += size) {
    float largest = lowest;
    float second = lowest;
    for (auto value = first; value != first + size; ++value) {
      second = std::max(second, std::min(largest, *value));
      largest = std::max(largest, *value);
    }
    of_groups.push_back(largest + second);
  }
  thread_local std::vector<std::int32_t> order;
  take_largest(of_groups, mixture.groups_per_token, order);
  const auto kept_end = order.begin() + mixture.groups_per_token;
  for (std::int32_t group = 0; group < mixture.num_groups; ++group) {
    if (!std::binary_search(order.begin(), kept_end, group))
      std::fill_n(values.begin() + group * size, size, lowest);
  }
}

void choose_by_sigmoid(const MixtureShape& mixture, const float* logits, const float* correction,
                       ExpertChoice* chosen) {
  thread_local std::vector<float> values;
  values.resize(static_cast<std::size_t>(mixture.num_experts));
  for (std::size_t e = 0; e < values.size(); ++e)
    values[e] = sigmoid(logits[e]) + (correction == nullptr ? 0 : correction[e]);
  leave_groups_out(mixture, values);
  thread_local std::vector<std::int32_t> order;
  take_largest(values, mixture.experts_per_token, order);
  float sum = 0;
  for (std::int32_t i = 0; i < mixture.experts_per_token; ++i) {
    const std::int32_t expert = order[static_cast<std::size_t>(i)];
    chosen[i] = {expert, sigmoid(logits[expert])};
    sum += chosen[i].weight;
  }
  for (std::int32_t i = 0; i < mixture.experts_per_token; ++i) {
    if (mixture.norm_chosen) chosen[i].weight /= sum + least_sum;
    chosen[i].weight *= mixture.routed_scaling;
  }
}

}  // namespace

bool choose_experts(const MixtureShape& mixture, const float* logits, ExpertChoice* chosen,
                    const float* correction) {
  const std::int64_t num_experts = mixture.num_experts;
  const std::int64_t count = mixture.experts_per_token;
  if (simd::find_not_finite(logits, num_experts, DType::f32) >= 0) return false;
  if (mixture.router == RouterKind::sigmoid) {
    choose_by_sigmoid(mixture, logits, correction, chosen);
    return true;
  }
  thread_local std::vector<std::int32_t> order;
  take_largest({logits, static_cast<std::size_t>(num_experts)}, count, order);
  const auto end = order.begin() + count;
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
  const float* correction = VectorLayout::at(operands.vectors, args.vectors.router_correction);
  cpu.pool.run(rows, [&](std::int64_t row) {
    if (choose_experts(args.mixture, logits + row * num_experts,
                       operands.routing + row * args.mixture.experts_per_token, correction))
      return;
    throw Error(
        "the router's logits of row {} in layer {} are NaN or infinite: the weights or what came "
        "before overflow; try --dtype f32",
        row, args.tag.layer);
  });
}

}  // namespace sluice
