#include <cmath>
#include <cstring>
#include <vector>

#include "codelets/embedding/embedding.h"

namespace sluice {
namespace {

double element(const std::byte* table, std::int64_t index, DType dtype) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, table + 4 * index, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, table + 2 * index, 2);
  return dtype == DType::bf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

}  // namespace

void embedding_reference(const EmbeddingOperands& operands, const float* project_in, double* x,
                         double* rope) {
  const EmbeddingArgs& args = *operands.args;
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t half = args.shape.rotated_dims() / 2;
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const std::int64_t token = row.token >= 0 ? row.token : operands.slot_tokens[-(row.token + 1)];
    for (std::int64_t i = 0; i < hidden; ++i) {
      double sum = 0;
      if (project_in != nullptr) {
        for (std::int64_t k = 0; k < args.embed_size; ++k) {
          sum += project_in[i * args.embed_size + k] *
                 element(operands.table, token * args.embed_size + k, args.table_dtype);
        }
      } else {
        sum = element(operands.table, token * hidden + i, args.table_dtype);
      }
      if (args.learned_positions) {
        sum += element(operands.positions, (row.position + args.position_offset) * hidden + i,
                       args.position_dtype);
      }
      x[r * hidden + i] = sum;
    }
    for (std::int64_t i = 0; args.shape.rope && i < half; ++i) {
      const double angle = static_cast<double>(row.position) * operands.frequencies[i];
      const double scale = args.rope_attention_factor;
      rope[r * 2 * half + i] = scale * std::cos(angle);
      rope[r * 2 * half + half + i] = scale * std::sin(angle);
    }
  }
}

}  // namespace sluice
