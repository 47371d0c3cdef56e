#include <vector>

#include "codelets/fc1/fc1.h"
#include "codelets/kernels/activate_ref.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"

namespace sluice {
void fc1_reference(const Fc1Operands& operands, const float* weight, const float* gate, double* h) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const NormVectors norm{VectorLayout::at(operands.vectors, at.ffn_norm_weight),
                         VectorLayout::at(operands.vectors, at.ffn_norm_bias)};
  std::vector<double> gates(static_cast<std::size_t>(shape.ffn_size));
  for (std::int64_t r = 0; r < operands.args->tag.num_tokens; ++r) {
    const float* x = operands.x + r * shape.hidden_size;
    std::vector<double> input(x, x + shape.hidden_size);
    if (shape.norm_place == NormPlace::pre) {
      norm_reference(shape, norm, input.data(), shape.hidden_size, input.data());
    }
    double* row = h + r * shape.ffn_size;
    linear_reference(input.data(), weight, VectorLayout::at(operands.vectors, at.fc1_bias),
                     shape.hidden_size, shape.ffn_size, row);
    if (shape.gated_ffn) {
      linear_reference(input.data(), gate, VectorLayout::at(operands.vectors, at.gate_bias),
                       shape.hidden_size, shape.ffn_size, gates.data());
    }
    for (std::int64_t i = 0; i < shape.ffn_size; ++i) {
      row[i] = shape.gated_ffn ? gated_reference(shape.activation, shape.swiglu_limit,
                                                 gates[static_cast<std::size_t>(i)], row[i])
                               : activate_reference(shape.activation, row[i]);
    }
  }
}

}  // namespace sluice
