#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/architecture.h"
#include "base/dtype.h"

namespace sluice {

/// What happens to a product y before it is stored.
enum class Epilogue : std::uint8_t {
  store,       ///< y
  accumulate,  ///< destination + y (the residual), f32 destinations only
  relu,
  gelu,       ///< with erf
  gelu_tanh,  ///< with tanh
  silu,
  multiply,  ///< y * operand
};

}  // namespace sluice

/// Vector loops (Google Highway), compiled for every instruction set and chosen at run time. A
/// row's result does not depend on the other rows.
namespace sluice::simd {

/// Name of the vector instruction set in use, e.g. "AVX3".
const char* target_name();

/// out[i] = norm(x)[i] * weight[i] + bias[i], stored as `dtype` (f32 or bf16). Statistics in f32.
/// layer_norm: (x - mean) / sqrt(var + eps); rms_norm: x / sqrt(mean(x^2) + eps). Null weight: 1,
/// null bias: 0. `out` may be `x` when dtype is f32.
void norm_row(NormKind kind, const float* x, std::int64_t n, const float* weight, const float* bias,
              float eps, DType dtype, void* out);

/// f32 to `dtype` (f32 or bf16), rounded to nearest even.
void store_row(const float* x, std::int64_t n, DType dtype, void* out);
/// `dtype` (f32, bf16 or f16) to f32. `x` may be unaligned.
void load_row(const void* x, std::int64_t n, DType dtype, float* out);

/// Rotates one head in place, the halves as pairs (Hugging Face's rotate_half): for i < head_dim /
/// 2 x[i] = x[i] cos[i] - x[i + h] sin[i], x[i + h] = x[i + h] cos[i] + x[i] sin[i] with h =
/// head_dim / 2.
void rope_head(float* x, const float* cos, const float* sin, std::int64_t head_dim);

/// First index whose value is NaN or infinite, or -1.
std::int64_t find_not_finite(const void* x, std::int64_t n, DType dtype);

/// A finished product [rows, columns] on its way into a wider matrix.
struct Tile {
  Epilogue epilogue = Epilogue::store;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const float* tile = nullptr;     ///< [rows, columns], dense
  const float* bias = nullptr;     ///< [columns], or null
  const float* operand = nullptr;  ///< [rows, columns], dense; for Epilogue::multiply
  void* dst = nullptr;             ///< may be `tile`
  std::int64_t dst_stride = 0;     ///< elements between rows of dst
  DType dst_dtype = DType::f32;    ///< f32 or bf16
};
/// dst = epilogue(tile + bias)
void finish_tile(const Tile& tile);

/// Rows of one sequence that attend, for one KV head and the `group` query heads that share it.
struct AttentionBlock {
  DType dtype = DType::bf16;  ///< of q, KV and out
  std::int64_t head_dim = 0;
  std::int64_t group = 1;
  std::int64_t num_rows = 0;
  std::int64_t first_position = 0;         ///< of the first row; the rows are consecutive
  std::int64_t sliding_window_tokens = 0;  ///< 0: none
  float scale = 1.0F;                      ///< 1 / sqrt(head_dim)
  std::int64_t row_stride = 0;             ///< elements between rows of q and of out
  const void* q = nullptr;                 ///< first row, first head of the group
  void* out = nullptr;                     ///< likewise
  const void* slab = nullptr;              ///< pages of `page_elements` each
  std::int64_t page_elements = 0;
  std::int64_t k_offset = 0;  ///< elements from a page's start to K [page_tokens, head_dim]
  std::int64_t v_offset = 0;
  std::span<const std::int32_t> pages;  ///< of the sequence, in order
};

/// Bytes of scratch that attention_block() needs.
std::size_t attention_scratch_bytes(std::int64_t num_rows, std::int64_t group,
                                    std::int64_t head_dim);

/// out = softmax(scale q K^T + causal mask) V, one pass over the pages with a running maximum
/// (flash attention; f32 throughout).
void attention_block(const AttentionBlock& block, void* scratch);

/// The split pair's halves for one row and one head. scores[t - first_token] for t in
/// [first_token, position], unscaled by softmax: scale q k_t.
void score_row(const AttentionBlock& block, std::int64_t row, std::int64_t head_in_group,
               float* scores, void* scratch);
/// out = softmax(scores) V; overwrites nothing but out.
void value_row(const AttentionBlock& block, std::int64_t row, std::int64_t head_in_group,
               const float* scores, void* scratch);

/// First token that a row at `position` may see.
constexpr std::int64_t first_visible_token(std::int64_t position, std::int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace sluice::simd
