#include <vector>

#include "codelets/kernels/element.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"
#include "codelets/residual/residual.h"

namespace sluice {

void residual_reference(const ResidualOperands& operands, const float* weight, double* x) {
  const DecoderShape& shape = operands.args->shape;
  const ResidualVectors& at = operands.args->vectors;
  const std::int64_t hidden = shape.hidden_size;
  const std::int64_t inner = operands.args->weight.in;
  std::vector<double> input(static_cast<std::size_t>(inner));
  for (std::int64_t r = 0; r < operands.args->tag.num_tokens; ++r) {
    for (std::int64_t i = 0; i < inner; ++i) {
      input[static_cast<std::size_t>(i)] = element_at(operands.inner, r * inner + i, shape.dtype);
    }
    double* row = x + r * hidden;
    linear_reference(input.data(), weight, VectorLayout::at(operands.vectors, at.bias), inner,
                     hidden, row);
    for (std::int64_t i = 0; i < hidden; ++i) row[i] += operands.x[r * hidden + i];
    if (shape.norm_place == NormPlace::post) {
      norm_reference(shape,
                     {VectorLayout::at(operands.vectors, at.norm_weight),
                      VectorLayout::at(operands.vectors, at.norm_bias)},
                     row, hidden, row);
    }
  }
}

}  // namespace sluice
