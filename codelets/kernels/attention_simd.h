#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/shape.h"

/// Attention's vector loops (Google Highway), compiled for every instruction set and chosen at run
/// time.
namespace sluice::simd {

/// The keys and values of one sequence, of some neighbouring KV heads; see DecoderShape for a
/// page's layout.
struct KvHeads {
  DType dtype = DType::bf16;
  std::int64_t num_heads = 1;
  std::int64_t head_dim = 0;
  std::int64_t padded_head_dim = 0;
  const std::byte* slab = nullptr;
  std::int64_t page_elements = 0;
  std::int64_t first_offset = 0;        ///< elements from a page's start to the first head
  std::span<const std::int32_t> pages;  ///< of the sequence, in order

  const std::byte* k(std::int64_t page, std::int64_t head) const { return at(page, 2 * head); }
  const std::byte* v(std::int64_t page, std::int64_t head) const { return at(page, 2 * head + 1); }

 private:
  const std::byte* at(std::int64_t page, std::int64_t halves) const {
    const std::int64_t element = pages[static_cast<std::size_t>(page)] * page_elements +
                                 first_offset + halves * page_tokens * padded_head_dim;
    return slab + static_cast<std::size_t>(element) * size_bytes(dtype);
  }
};

/// The query heads of one row that share these KV heads, `group` each, over tokens [first_token,
/// end_token).
struct GroupedQuery {
  KvHeads kv;
  std::int64_t group = 1;
  const std::byte* q = nullptr;  ///< [num_queries, head_dim], dtype
  float scale = 1.0F;            ///< 1 / sqrt(head_dim)
  std::int64_t first_token = 0;
  std::int64_t end_token = 0;
  /// [num_queries], scores that count in the softmax and have no value; or null
  const float* sinks = nullptr;

  std::int64_t num_queries() const { return group * kv.num_heads; }
};

/// Softmax over a part of the context, not yet divided by its sum: that of query i is
/// sum[i, :] = sum_t 2^(s_t - maximum[i]) v_t with s_t = log2(e) scale q_i k_t, and
/// denominators[i, :] add up to the same without v_t.
struct PartialAttention {
  float* sum = nullptr;           ///< [num_queries, padded_head_dim]
  float* denominators = nullptr;  ///< [num_queries, page_tokens]
  /// [num_queries]: a maximum of s_t, which others exceed by score_slack at most
  float* maximum = nullptr;

  /// Floats that one takes.
  static std::int64_t num_floats(std::int64_t num_queries, std::int64_t padded_head_dim) {
    return num_queries * (padded_head_dim + page_tokens + 1);
  }
  static PartialAttention at(float* memory, std::int64_t num_queries,
                             std::int64_t padded_head_dim) {
    float* after = memory + num_queries * padded_head_dim;
    return {memory, after, after + num_queries * page_tokens};
  }
};

/// What a sink adds to a denominator that refers to `maximum`, a score times log2(e). Infinite for
/// one far above all scores, of which nothing is left then.
inline float sink_weight(float sink, float maximum) {
  constexpr float log2_of_e = 1.44269504F;
  return std::exp2(log2_of_e * sink - maximum);
}

/// Scratch bytes that attend() and the split pair need.
std::size_t attend_scratch_bytes(std::int64_t num_queries, std::int64_t padded_head_dim);

/// Reads each key and value once, in the order in which they lie in memory, for all heads of a
/// group (flash attention's running maximum; NEO section 4), in f32. Only the named tokens are
/// read.
void attend(const GroupedQuery& query, const PartialAttention& out, void* scratch);

/// Puts parts of one context together, and the sinks, and writes each head's row: out [num_queries,
/// head_dim] in dtype (flash-decoding's second step). `parts` lie behind one another.
void combine_attention(const GroupedQuery& query, float* parts, std::int64_t num_parts,
                       std::byte* out);

/// The split pair's halves for one row and one head: scores[t - first_token] = scale q k_t, ...
void score_row(const GroupedQuery& query, float* scores, void* scratch);
/// ... and out [head_dim] = softmax(scores) V, in dtype.
void value_row(const GroupedQuery& query, const float* scores, std::byte* out, void* scratch);

/// Most tokens of a SoftmaxTile.
constexpr std::int64_t max_tile_tokens = 128;

/// A tile of scores of one head, rows x tokens, on its way through flash attention.
struct SoftmaxTile {
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< tokens, whole vectors
  float* scores = nullptr;   ///< [rows, columns], q k
  std::int64_t stride = 0;   ///< elements between rows of scores and weights
  float scale = 1.0F;
  std::int64_t first_position = 0;         ///< of row 0; rows are consecutive
  std::int64_t first_token = 0;            ///< of column 0
  std::int64_t sliding_window_tokens = 0;  ///< 0: none
  /// The weights, 0 where a row may not look, as the sum of two bf16, each [rows, columns]: one
  /// alone would be off by 2^-9. Null: they take the scores' place, in f32.
  std::uint16_t* weights = nullptr;
  std::uint16_t* rests = nullptr;
  float* maximum = nullptr;      ///< [rows], updated; -inf at first
  float* denominator = nullptr;  ///< [rows], updated; 0 at first
  float* sum = nullptr;          ///< [rows, sum_columns], scaled to the new maximum
  std::int64_t sum_columns = 0;
};
void softmax_tile(const SoftmaxTile& tile);

/// out [head_dim] in dtype = sum / denominator
void store_attention_row(const float* sum, float denominator, std::int64_t head_dim, DType dtype,
                         std::byte* out);

/// First token that a row at `position` may see.
constexpr std::int64_t first_visible_token(std::int64_t position, std::int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace sluice::simd
