#pragma once

#include <cstdint>

namespace sluice {

/// Decode attention over one KV page of one KV head in bf16, with AVX-512's dot product
/// (has_bf16_strips()). See DecoderShape for a page's layout.

/// Dot products of queries with the 16 keys of a page: scores[i, t] = q_i . k_t.
struct PageScores {
  std::int64_t queries = 0;
  std::int64_t depth = 0;            ///< even
  const std::uint16_t* q = nullptr;  ///< bf16 [queries, depth]
  std::int64_t q_stride = 0;         ///< elements
  const std::uint16_t* k = nullptr;  ///< bf16 [depth / 2][16][2]
  float* scores = nullptr;           ///< [queries, 16]
};
void page_scores(const PageScores& call);

/// By how much a score may exceed the maximum that the weights refer to before all that was summed
/// is scaled anew. A weight of up to 2^16 costs no accuracy in f32, whereas following every new
/// maximum costs a mispredicted branch in every other page ("lazy rescaling", FlashAttention-4).
constexpr float score_slack = 16.0F;

/// One step of flash attention for the queries that share a KV head. With s_t = scale q_i . k_t and
/// weights w_t = 2^(s_t - maximum[i]), adds w_t v_t to sum[i, :] and w_t to denominators[i, t] for
/// all 16 tokens t, and raises maximum[i], scaling both sums, if some s_t exceeds it by more than
/// score_slack. A weight counts as the sum of two bf16, so it is off by less than 2^-16 of itself.
struct PageAttention {
  std::int64_t queries = 0;
  std::int64_t depth = 0;            ///< elements of a query and a key, even
  const std::uint16_t* q = nullptr;  ///< bf16 [queries, depth]
  const std::uint16_t* k = nullptr;  ///< bf16 [depth / 2][16][2]
  std::int64_t columns = 0;          ///< elements of a value, a multiple of 16
  const std::uint16_t* v = nullptr;  ///< bf16 [8][columns][2]: two tokens' elements side by side
  float scale = 1.0F;
  float* sum = nullptr;           ///< [queries, columns]
  float* denominators = nullptr;  ///< [queries, 16]
  float* maximum = nullptr;       ///< [queries], -inf at first
  /// The keys and the values that are needed soon, as long as k and v: fetched into the
  /// second-level cache, or null.
  const void* k_ahead = nullptr;
  const void* v_ahead = nullptr;
};
void attend_page(const PageAttention& call);

}  // namespace sluice
