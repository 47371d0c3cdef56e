#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/kernels/bf16_arithmetic.h"

namespace sluice {

/// Decode attention over one KV page of one KV head in bf16, with AVX-512: not by the portable
/// arithmetic. See DecoderShape for a page's layout.

/// Dot products of queries with the 16 keys of a page, by Bf16Arithmetic::dot_products:
/// scores[i, t] = q_i . k_t.
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

/// Keys and values as long as those that are computed with, or null.
struct PageFetch {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  explicit operator bool() const { return k != nullptr && v != nullptr; }
};

/// One step of flash attention for the queries that share a KV head. With s_t = scale q_i . k_t and
/// weights w_t = 2^(s_t - maximum[i]), adds w_t v_t to sum[i, :] and w_t to denominators[i, t] for
/// all 16 tokens t, and raises maximum[i], scaling both sums, if some s_t exceeds it by more than
/// score_slack. By dot products a weight counts as the sum of two bf16, so it is off by less than
/// 2^-16 of itself.
struct PageAttention {
  std::int64_t queries = 0;
  std::int64_t depth = 0;            ///< elements of a query and a key, even
  const std::uint16_t* q = nullptr;  ///< bf16 [queries, depth], read by dot_products
  const float* wide_q = nullptr;     ///< the same in f32 [queries, columns], read by multiply_add
  const std::uint16_t* k = nullptr;  ///< bf16 [depth / 2][16][2]
  std::int64_t columns = 0;          ///< elements of a value, a multiple of 16, at least depth
  const std::uint16_t* v = nullptr;  ///< bf16 [8][columns][2]: two tokens' elements side by side
  float scale = 1.0F;
  float* sum = nullptr;           ///< [queries, columns]
  float* denominators = nullptr;  ///< [queries, 16]
  float* maximum = nullptr;       ///< [queries], -inf at first
  PageFetch far;   ///< what is needed soon: fetched into the second-level cache meanwhile
  PageFetch near;  ///< what is needed next, only beside `far`: into the first-level cache
  Bf16Arithmetic arithmetic = fastest_bf16_arithmetic();
};
void attend_page(const PageAttention& call);

}  // namespace sluice
