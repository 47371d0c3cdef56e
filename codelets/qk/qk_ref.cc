#include <cmath>

#include "codelets/kernels/element.h"
#include "codelets/qk/qk.h"

namespace sluice {

void qk_reference(const QkOperands& operands, double* scores) {
  const DecoderShape& shape = operands.args->shape;
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const auto pages =
        operands.batch.pages(operands.batch.sequences()[static_cast<std::size_t>(row.sequence)]);
    for (std::int64_t head = 0; head < shape.num_heads; ++head) {
      const std::int64_t window = shape.sliding_window_tokens;
      std::int64_t token = window > 0 && row.position >= window ? row.position - window + 1 : 0;
      for (; token <= row.position; ++token) {
        const std::int64_t page =
            pages[static_cast<std::size_t>(token / page_tokens)] * shape.page_elements();
        double sum = 0;
        for (std::int64_t i = 0; i < shape.head_dim; ++i) {
          sum +=
              element_at(operands.q, r * shape.q_size() + head * shape.head_dim + i, shape.dtype) *
              element_at(operands.slab,
                         page + shape.k_index(head / shape.group_size(), token % page_tokens, i),
                         shape.dtype);
        }
        scores[next++] = sum / std::sqrt(static_cast<double>(shape.head_dim));
      }
    }
  }
}

}  // namespace sluice
