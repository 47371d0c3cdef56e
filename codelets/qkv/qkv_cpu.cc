#include <algorithm>
#include <cstring>

#include "codelets/kernels/kv_page.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/kernels/simd.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/qkv/qkv.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

/// Takes the RMS norm of `count` heads; without weights does nothing.
void normalise_heads(const DecoderShape& shape, const float* weight, float* heads,
                     std::int64_t count) {
  if (weight == nullptr) return;
  for (std::int64_t head = 0; head < count; ++head) {
    float* of = heads + head * shape.head_dim;
    simd::norm_row(NormKind::rms_norm, of, shape.head_dim, weight, nullptr, shape.norm_eps,
                   DType::f32, of);
  }
}

/// Normalises and rotates one row's q and k, and stores q.
void finish_row(const QkvOperands& operands, std::int64_t r, float* qkv) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t dim = shape.head_dim;
  normalise_heads(shape, VectorLayout::at(operands.vectors, at.q_norm_weight), qkv,
                  shape.num_heads);
  normalise_heads(shape, VectorLayout::at(operands.vectors, at.k_norm_weight), qkv + shape.q_size(),
                  shape.num_kv_heads);
  if (shape.rope) {
    const std::int64_t rotated = shape.rotated_dims();
    const float* cos = operands.rope + r * rotated;
    for (std::int64_t head = 0; head < shape.num_heads + shape.num_kv_heads; ++head) {
      simd::rope_head(qkv + head * dim, cos, cos + rotated / 2, rotated);
    }
  }
  simd::store_row(
      qkv, shape.q_size(), shape.dtype,
      operands.q + static_cast<std::size_t>(r * shape.q_size()) * size_bytes(shape.dtype));
}

/// Puts one row's k and v into its page.
void place_kv(const QkvOperands& operands, std::int64_t r, const float* kv) {
  const DecoderShape& shape = operands.args->shape;
  const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
  const std::int64_t token = row.position % page_tokens;
  std::byte* page = page_of(shape, operands.batch, row, operands.slab);
  if (shape.dtype == DType::f32) {
    store_kv(shape, token, kv, reinterpret_cast<float*>(page));
  } else {
    store_kv(shape, token, kv, reinterpret_cast<BFloat16*>(page));
  }
}

/// Passes one row's k and v on, rounded as place_kv() would.
void pass_kv(const QkvOperands& operands, std::int64_t r, const float* kv) {
  const DecoderShape& shape = operands.args->shape;
  const std::int64_t width = 2 * shape.kv_size();
  std::byte* to = operands.new_kv + static_cast<std::size_t>(r * width) * size_bytes(shape.dtype);
  if (shape.dtype == DType::f32) {
    std::memcpy(to, kv, static_cast<std::size_t>(width) * sizeof(float));
  } else {
    std::transform(kv, kv + width, reinterpret_cast<BFloat16*>(to), to_bf16);
  }
}

/// Puts q, k and v of all rows [rows, qkv_size] where they belong.
void place_rows(const CpuContext& cpu, const QkvOperands& operands, float* qkv) {
  const DecoderShape& shape = operands.args->shape;
  const std::int64_t rows = operands.batch.num_rows();
  const auto place = [&](auto&& put_kv) {
    cpu.pool.run(rows, [&](std::int64_t r) {
      float* row = qkv + r * shape.qkv_size();
      finish_row(operands, r, row);
      put_kv(operands, r, row + shape.q_size());
    });
  };
  if (operands.new_kv == nullptr) return place(place_kv);
  place(pass_kv);
  if (operands.slab == nullptr) return;
  const KvStoreArgs args{operands.args->tag, shape};
  kv_store_cpu(cpu, {&args, operands.batch, operands.new_kv, operands.slab});
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
  linear(cpu.pool, {.weight = operands.weight,
                    .dtype = shape.dtype,
                    .x = input,
                    .rows = rows,
                    .x_stride = stride,
                    .bias = VectorLayout::at(operands.vectors, at.qkv_bias),
                    .dst = qkv});
  place_rows(cpu, operands, qkv);
}

}  // namespace sluice
