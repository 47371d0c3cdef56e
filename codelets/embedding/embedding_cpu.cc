#include <cmath>

#include "codelets/embedding/embedding.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/simd.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

std::int64_t token_of(const EmbeddingOperands& operands, const BatchRow& row) {
  const std::int64_t token = row.token >= 0 ? row.token : operands.slot_tokens[-(row.token + 1)];
  if (token < 0 || token >= operands.args->vocab_size) {
    throw Error("token id {} is outside of the vocabulary of {}", token, operands.args->vocab_size);
  }
  return token;
}

const std::byte* table_row(const std::byte* table, std::int64_t row, std::int64_t width,
                           DType dtype) {
  return table + static_cast<std::size_t>(row * width) * size_bytes(dtype);
}

void write_rope(const EmbeddingOperands& operands, std::int64_t row, std::int32_t position) {
  const std::int64_t half = operands.args->shape.rotated_dims() / 2;
  float* out = operands.rope + row * 2 * half;
  const float scale = operands.args->rope_attention_factor;
  for (std::int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * operands.frequencies[i];
    out[i] = scale * std::cos(angle);
    out[half + i] = scale * std::sin(angle);
  }
}

/// W_in x for all rows, through the workspace.
void project(const CpuContext& cpu, const EmbeddingOperands& operands) {
  const EmbeddingArgs& args = *operands.args;
  const DType dtype = args.shape.dtype;
  const std::int64_t rows = operands.batch.num_rows();
  const std::size_t row_bytes = static_cast<std::size_t>(args.embed_size) * size_bytes(dtype);
  std::byte* embedded = cpu.workspace.reserve(static_cast<std::size_t>(rows) * row_bytes);
  cpu.pool.run(rows, [&](std::int64_t r) {
    const std::int64_t token =
        token_of(operands, operands.batch.rows()[static_cast<std::size_t>(r)]);
    thread_local std::vector<float> row;
    row.resize(static_cast<std::size_t>(args.embed_size));
    simd::load_row(table_row(operands.table, token, args.embed_size, args.table_dtype),
                   args.embed_size, args.table_dtype, row.data());
    simd::store_row(row.data(), args.embed_size, dtype,
                    embedded + static_cast<std::size_t>(r) * row_bytes);
  });
  linear(cpu.pool, {.weight = operands.project_in,
                    .dtype = dtype,
                    .x = embedded,
                    .rows = rows,
                    .dst = operands.x});
}

}  // namespace

void embedding_cpu(const CpuContext& cpu, const EmbeddingOperands& operands) {
  const EmbeddingArgs& args = *operands.args;
  const std::int64_t hidden = args.shape.hidden_size;
  if (args.project_in) project(cpu, operands);
  cpu.pool.run(operands.batch.num_rows(), [&](std::int64_t r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    float* x = operands.x + r * hidden;
    if (!args.project_in) {
      simd::load_row(table_row(operands.table, token_of(operands, row), hidden, args.table_dtype),
                     hidden, args.table_dtype, x);
    }
    if (args.learned_positions) {
      if (row.position + args.position_offset >= args.position_rows) {
        throw Error("position {} is beyond the model's {} positions", row.position,
                    args.position_rows - args.position_offset);
      }
      thread_local std::vector<float> position;
      position.resize(static_cast<std::size_t>(hidden));
      simd::load_row(table_row(operands.positions, row.position + args.position_offset, hidden,
                               args.position_dtype),
                     hidden, args.position_dtype, position.data());
      for (std::int64_t i = 0; i < hidden; ++i) x[i] += position[static_cast<std::size_t>(i)];
    }
    if (args.shape.rope) write_rope(operands, r, row.position);
  });
}

}  // namespace sluice
