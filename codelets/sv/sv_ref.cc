#include <algorithm>
#include <cmath>
#include <vector>

#include "codelets/kernels/element.h"
#include "codelets/sv/sv.h"

namespace sluice {

void sv_reference(const SvOperands& operands, double* out) {
  const DecoderShape& shape = operands.args->shape;
  const float* sinks = sinks_of(*operands.args, operands.vectors);
  const float* scores = operands.scores;
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const auto pages =
        operands.batch.pages(operands.batch.sequences()[static_cast<std::size_t>(row.sequence)]);
    const std::int64_t window = shape.sliding_window_tokens;
    const std::int64_t first = window > 0 && row.position >= window ? row.position - window + 1 : 0;
    const std::int64_t count = row.position + 1 - first;
    for (std::int64_t head = 0; head < shape.num_heads; ++head, scores += count) {
      double maximum = *std::max_element(scores, scores + count);
      if (sinks != nullptr) maximum = std::max(maximum, double{sinks[head]});
      double total = sinks != nullptr ? std::exp(sinks[head] - maximum) : 0.0;
      for (std::int64_t c = 0; c < count; ++c) total += std::exp(scores[c] - maximum);
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        double sum = 0;
        for (std::int64_t c = 0; c < count; ++c) {
          const std::int64_t token = first + c;
          const std::int64_t at =
              pages[static_cast<std::size_t>(token / page_tokens)] * shape.page_elements() +
              shape.v_index(head / shape.group_size(), token % page_tokens, i);
          sum += std::exp(scores[c] - maximum) / total * element_at(operands.slab, at, shape.dtype);
        }
        out[r * shape.q_size() + head * shape.head_dim + i] = sum;
      }
    }
  }
}

}  // namespace sluice
