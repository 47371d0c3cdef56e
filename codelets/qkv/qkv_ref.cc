#include <cmath>
#include <vector>

#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"
#include "codelets/qkv/qkv.h"

namespace sluice {

void qkv_reference(const QkvOperands& operands, const float* weight, double* qkv) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t dim = shape.head_dim;
  const NormVectors norm{VectorLayout::at(operands.vectors, at.attention_norm_weight),
                         VectorLayout::at(operands.vectors, at.attention_norm_bias)};
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const float* x = operands.x + r * shape.hidden_size;
    std::vector<double> input(x, x + shape.hidden_size);
    if (shape.norm_place == NormPlace::pre) {
      norm_reference(shape, norm, input.data(), shape.hidden_size, input.data());
    }
    double* row = qkv + r * shape.qkv_size();
    linear_reference(input.data(), weight, VectorLayout::at(operands.vectors, at.qkv_bias),
                     shape.hidden_size, shape.qkv_size(), row);
    const auto normalise = [&](std::int64_t offset, std::int64_t first, std::int64_t count) {
      const float* by = VectorLayout::at(operands.vectors, offset);
      for (double* of = row + first * dim; by != nullptr && count > 0; of += dim, --count) {
        double squares = 0;
        for (std::int64_t i = 0; i < dim; ++i) squares += of[i] * of[i];
        const double rms = std::sqrt(squares / static_cast<double>(dim) + double{shape.norm_eps});
        for (std::int64_t i = 0; i < dim; ++i) of[i] *= by[i] / rms;
      }
    };
    normalise(at.q_norm_weight, 0, shape.num_heads);
    normalise(at.k_norm_weight, shape.num_heads, shape.num_kv_heads);
    for (std::int64_t head = 0; shape.rope && head < shape.num_heads + shape.num_kv_heads; ++head) {
      const std::int64_t turned = shape.rotated_dims();
      for (std::int64_t i = 0; i < turned / 2; ++i) {
        const double cos = operands.rope[r * turned + i];
        const double sin = operands.rope[r * turned + turned / 2 + i];
        double& low = row[head * dim + i];
        double& high = row[head * dim + turned / 2 + i];
        const double rotated = low * cos - high * sin;
        high = high * cos + low * sin;
        low = rotated;
      }
    }
  }
}

}  // namespace sluice
