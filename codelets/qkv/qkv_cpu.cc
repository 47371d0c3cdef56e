#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/kernels/simd.h"
#include "codelets/qkv/qkv.h"

namespace sluice {
namespace {

float element_of(float value, const float* /*like*/) { return value; }
BFloat16 element_of(float value, const BFloat16* /*like*/) { return to_bf16(value); }

/// Puts one token's k and v, both in `kv`, into its page.
template <typename Element>
void store_kv(const DecoderShape& shape, std::int64_t token, const float* kv, Element* page) {
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const float* k = kv + head * shape.head_dim;
    const float* v = k + shape.kv_size();
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      page[shape.k_index(head, token, i)] = element_of(k[i], page);
      page[shape.v_index(head, token, i)] = element_of(v[i], page);
    }
  }
}

/// Rotates one row's q and k and puts q, k and v where they belong.
void place_row(const QkvOperands& operands, std::int64_t r, float* qkv) {
  const DecoderShape& shape = operands.args->shape;
  const std::int64_t dim = shape.head_dim;
  const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
  if (shape.rope) {
    const float* cos = operands.rope + r * dim;
    for (std::int64_t head = 0; head < shape.num_heads + shape.num_kv_heads; ++head) {
      simd::rope_head(qkv + head * dim, cos, cos + dim / 2, dim);
    }
  }
  const std::size_t element = size_bytes(shape.dtype);
  simd::store_row(qkv, shape.q_size(), shape.dtype,
                  operands.q + static_cast<std::size_t>(r * shape.q_size()) * element);

  const auto& sequence = operands.batch.sequences()[static_cast<std::size_t>(row.sequence)];
  const std::int64_t page =
      operands.batch.pages(sequence)[static_cast<std::size_t>(row.position / page_tokens)];
  std::byte* in_page =
      operands.slab + static_cast<std::size_t>(page * shape.page_elements()) * element;
  if (shape.dtype == DType::f32) {
    store_kv(shape, row.position % page_tokens, qkv + shape.q_size(),
             reinterpret_cast<float*>(in_page));
  } else {
    store_kv(shape, row.position % page_tokens, qkv + shape.q_size(),
             reinterpret_cast<BFloat16*>(in_page));
  }
}

}  // namespace

void qkv_cpu(const CpuContext& cpu, const QkvOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.batch.num_rows();
  const auto floats = static_cast<std::size_t>(rows * shape.qkv_size());
  const std::int64_t stride = activation_stride(shape.hidden_size, shape.dtype);
  const auto inputs = static_cast<std::size_t>(rows * stride);
  std::byte* workspace =
      cpu.workspace.reserve(floats * sizeof(float) + inputs * size_bytes(shape.dtype));
  auto* qkv = reinterpret_cast<float*>(workspace);
  std::byte* input = workspace + floats * sizeof(float);

  block_input(cpu.pool, shape,
              {VectorLayout::at(operands.vectors, at.attention_norm_weight),
               VectorLayout::at(operands.vectors, at.attention_norm_bias)},
              operands.x, rows, input);
  const LinearShape linear_shape{shape.hidden_size, shape.qkv_size(), shape.dtype};
  linear(cpu.pool, {.layout = &PackedLayout::get(linear_shape),
                    .packed = operands.weight,
                    .x = input,
                    .rows = rows,
                    .x_stride = stride,
                    .bias = VectorLayout::at(operands.vectors, at.qkv_bias),
                    .dst = qkv});
  cpu.pool.run(rows, [&](std::int64_t r) { place_row(operands, r, qkv + r * shape.qkv_size()); });
}

}  // namespace sluice
