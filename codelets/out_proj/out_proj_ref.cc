#include <vector>

#include "codelets/kernels/element.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"
#include "codelets/out_proj/out_proj.h"

namespace sluice {

void out_proj_reference(const OutProjOperands& operands, const float* weight, double* x) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t hidden = shape.hidden_size;
  std::vector<double> input(static_cast<std::size_t>(shape.q_size()));
  for (std::int64_t r = 0; r < operands.args->tag.num_tokens; ++r) {
    for (std::int64_t i = 0; i < shape.q_size(); ++i) {
      input[static_cast<std::size_t>(i)] =
          element_at(operands.attention, r * shape.q_size() + i, shape.dtype);
    }
    double* row = x + r * hidden;
    linear_reference(input.data(), weight, VectorLayout::at(operands.vectors, at.out_bias),
                     shape.q_size(), hidden, row);
    for (std::int64_t i = 0; i < hidden; ++i) row[i] += operands.x[r * hidden + i];
    if (shape.norm_place == NormPlace::post) {
      norm_reference(shape,
                     {VectorLayout::at(operands.vectors, at.attention_norm_weight),
                      VectorLayout::at(operands.vectors, at.attention_norm_bias)},
                     row, hidden, row);
    }
  }
}

}  // namespace sluice
