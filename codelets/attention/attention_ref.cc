#include <algorithm>
#include <cmath>
#include <vector>

#include "codelets/attention/attention.h"
#include "codelets/kernels/element.h"

namespace sluice {

void attention_reference(const AttentionOperands& operands, double* out) {
  const DecoderShape& shape = operands.args->shape;
  const std::int64_t dim = shape.head_dim;
  const float* sinks = sinks_of(*operands.args, operands.vectors);
  const auto cached = [&](const BatchSequence& sequence, std::int64_t token, std::int64_t head,
                          std::int64_t i, std::int64_t half) {
    const std::int64_t page =
        operands.batch.pages(sequence)[static_cast<std::size_t>(token / page_tokens)];
    const std::int64_t in_page = token % page_tokens;
    const std::int64_t at =
        page * shape.page_elements() +
        (half == 0 ? shape.k_index(head, in_page, i) : shape.v_index(head, in_page, i));
    return element_at(operands.slab, at, shape.dtype);
  };
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const BatchSequence& sequence =
        operands.batch.sequences()[static_cast<std::size_t>(row.sequence)];
    const std::int64_t window = shape.sliding_window_tokens;
    const std::int64_t first =
        window > 0 ? std::max<std::int64_t>(0, row.position - window + 1) : 0;
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const std::int64_t kv_head = head / shape.group_size();
      std::vector<double> weights;
      for (std::int64_t token = first; token <= row.position; ++token) {
        double score = 0;
        for (std::int64_t i = 0; i < dim; ++i) {
          score += element_at(operands.q, r * shape.q_size() + head * dim + i, shape.dtype) *
                   cached(sequence, token, kv_head, i, 0);
        }
        weights.push_back(score / std::sqrt(static_cast<double>(dim)));
      }
      double maximum = *std::max_element(weights.begin(), weights.end());
      if (sinks != nullptr) maximum = std::max(maximum, double{sinks[head]});
      double total = sinks != nullptr ? std::exp(sinks[head] - maximum) : 0.0;
      for (double& weight : weights) total += weight = std::exp(weight - maximum);
      for (std::int64_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (std::size_t t = 0; t < weights.size(); ++t) {
          sum += weights[t] / total *
                 cached(sequence, first + static_cast<std::int64_t>(t), kv_head, i, 1);
        }
        out[r * shape.q_size() + head * dim + i] = sum;
      }
    }
  }
}

}  // namespace sluice
