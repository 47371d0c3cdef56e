#include <vector>

#include "codelets/fc2/fc2.h"
#include "codelets/kernels/element.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"

namespace sluice {

void fc2_reference(const Fc2Operands& operands, const float* weight, double* x) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t hidden = shape.hidden_size;
  std::vector<double> input(static_cast<std::size_t>(shape.ffn_size));
  for (std::int64_t r = 0; r < operands.args->tag.num_tokens; ++r) {
    for (std::int64_t i = 0; i < shape.ffn_size; ++i) {
      input[static_cast<std::size_t>(i)] =
          element_at(operands.h, r * shape.ffn_size + i, shape.dtype);
    }
    double* row = x + r * hidden;
    linear_reference(input.data(), weight, VectorLayout::at(operands.vectors, at.fc2_bias),
                     shape.ffn_size, hidden, row);
    for (std::int64_t i = 0; i < hidden; ++i) row[i] += operands.x[r * hidden + i];
    if (shape.norm_place == NormPlace::post) {
      norm_reference(shape,
                     {VectorLayout::at(operands.vectors, at.ffn_norm_weight),
                      VectorLayout::at(operands.vectors, at.ffn_norm_bias)},
                     row, hidden, row);
    }
  }
}

}  // namespace sluice
