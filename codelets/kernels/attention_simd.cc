#include "codelets/kernels/attention_simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codelets/kernels/bf16_strip.h"
#include "codelets/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/attention_simd.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// At most the 16 lanes that a page's tokens and the padding of a head fill.
using FloatTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using Vector = hn::Vec<FloatTag>;
using Words = hn::Vec<WordTag>;

constexpr std::int64_t lanes() { return static_cast<std::int64_t>(hn::MaxLanes(FloatTag())); }
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
/// Tokens whose scores are held at once.
constexpr std::int64_t block_tokens = 128;
constexpr std::int64_t block_pages = block_tokens / page_tokens;
/// Queries whose sums are held in registers at once, over four vectors of the head each.
constexpr int max_queries = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// The bfloat16 in the lower half of each word, and the one in the upper.
HWY_INLINE Vector lower(Words words) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
}
HWY_INLINE Vector upper(Words words) {
  return hn::BitCast(FloatTag(), hn::And(words, hn::Set(WordTag(), 0xffff0000U)));
}

/// exp(x) for x <= 0. Highway's is defined down to -104; what is below -87 is no normal number.
HWY_INLINE Vector exp_of(Vector x) {
  const FloatTag d;
  const auto vanishes = hn::Lt(x, hn::Set(d, -87.0F));
  return hn::IfThenZeroElse(vanishes, hn::Exp(d, hn::IfThenZeroElse(vanishes, x)));
}

HWY_INLINE void fetch(const std::byte* from, std::int64_t size_bytes) {
  for (std::int64_t at = 0; at < size_bytes; at += 64) hwy::Prefetch(from + at);
}

/// scores[i, 0..16) = q_i . k for `Queries` queries and one page of keys. q is f32, padded.
template <int Queries>
HWY_INLINE void score_queries(const KvHead& kv, const std::byte* k, const float* q,
                              std::int64_t stride, float* scores) {
  const FloatTag d;
  for (std::int64_t t = 0; t < page_tokens; t += lanes()) {
    Vector sum[Queries];
    for (Vector& value : sum) value = hn::Zero(d);
    if (kv.dtype == DType::bf16) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(k) + t;
      for (std::int64_t i = 0; i < kv.padded_head_dim; i += 2) {
        const Words pair = hn::LoadU(WordTag(), words + i / 2 * page_tokens);
        for (int n = 0; n < Queries; ++n) {
          sum[n] = hn::MulAdd(hn::Set(d, q[n * stride + i]), lower(pair), sum[n]);
          sum[n] = hn::MulAdd(hn::Set(d, q[n * stride + i + 1]), upper(pair), sum[n]);
        }
      }
    } else {
      const auto* values = reinterpret_cast<const float*>(k) + t;
      for (std::int64_t i = 0; i < kv.padded_head_dim; ++i) {
        const Vector keys = hn::LoadU(d, values + i * page_tokens);
        for (int n = 0; n < Queries; ++n) {
          sum[n] = hn::MulAdd(hn::Set(d, q[n * stride + i]), keys, sum[n]);
        }
      }
    }
    for (int n = 0; n < Queries; ++n) hn::StoreU(sum[n], d, scores + n * block_tokens + t);
  }
}

/// Scores of all queries with one page of keys.
HWY_INLINE void score_page(const GroupedQuery& query, std::int64_t page, const float* q,
                           float* scores) {
  const KvHead& kv = query.kv;
  if (q == nullptr) {
    page_scores({.queries = query.group,
                 .depth = kv.head_dim,
                 .q = reinterpret_cast<const std::uint16_t*>(query.q),
                 .q_stride = kv.head_dim,
                 .k = reinterpret_cast<const std::uint16_t*>(kv.k(page)),
                 .scores = scores,
                 .score_stride = block_tokens});
    return;
  }
  std::int64_t i = 0;
  for (; i + max_queries <= query.group; i += max_queries) {
    score_queries<max_queries>(kv, kv.k(page), q + i * kv.padded_head_dim, kv.padded_head_dim,
                               scores + i * block_tokens);
  }
  for (; i < query.group; ++i) {
    score_queries<1>(kv, kv.k(page), q + i * kv.padded_head_dim, kv.padded_head_dim,
                     scores + i * block_tokens);
  }
}

/// Tokens of a block of pages: weights w[i, t - base] apply to tokens [low, high).
struct Block {
  std::int64_t base, low, high;
};

/// sum_i = factor_i sum_i + sum_t w[i, t] v_t over `Vectors` vectors of the head from `dim` on.
template <int Queries, int Vectors>
HWY_INLINE void add_values(const KvHead& kv, const Block& block, const float* weights,
                           const float* factors, std::int64_t dim, float* sums) {
  const FloatTag d;
  Vector sum[Queries][Vectors];
  for (int n = 0; n < Queries; ++n) {
    for (int j = 0; j < Vectors; ++j) {
      const float* from = sums + n * kv.padded_head_dim + dim + j * lanes();
      sum[n][j] = hn::Mul(hn::Set(d, factors[n]), hn::LoadU(d, from));
    }
  }
  const auto add = [&](std::int64_t token, const auto& value_of) {
    for (int n = 0; n < Queries; ++n) {
      const Vector weight = hn::Set(d, weights[n * block_tokens + token - block.base]);
      for (int j = 0; j < Vectors; ++j) sum[n][j] = hn::MulAdd(weight, value_of(j), sum[n][j]);
    }
  };
  for (std::int64_t token = block.low; token < block.high;) {
    const std::byte* page = kv.v(token / page_tokens);
    const std::int64_t page_begin = token / page_tokens * page_tokens;
    const std::int64_t page_end = std::min(page_begin + page_tokens, block.high);
    if (kv.dtype == DType::bf16) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(page) + dim;
      while (token < page_end) {
        Words pair[Vectors];
        const std::int64_t row = (token - page_begin) / 2;
        for (int j = 0; j < Vectors; ++j) {
          pair[j] = hn::LoadU(WordTag(), words + row * kv.padded_head_dim + j * lanes());
        }
        if (token % 2 == 0) add(token++, [&](int j) { return lower(pair[j]); });
        if (token < page_end) add(token++, [&](int j) { return upper(pair[j]); });
      }
    } else {
      const auto* values = reinterpret_cast<const float*>(page) + dim;
      for (; token < page_end; ++token) {
        add(token, [&](int j) {
          return hn::LoadU(d, values + (token - page_begin) * kv.padded_head_dim + j * lanes());
        });
      }
    }
  }
  for (int n = 0; n < Queries; ++n) {
    for (int j = 0; j < Vectors; ++j) {
      hn::StoreU(sum[n][j], d, sums + n * kv.padded_head_dim + dim + j * lanes());
    }
  }
}

template <int Queries>
HWY_INLINE void add_values_of(const KvHead& kv, const Block& block, const float* weights,
                              const float* factors, float* sums) {
  std::int64_t dim = 0;
  for (; dim + 4 * lanes() <= kv.padded_head_dim; dim += 4 * lanes()) {
    add_values<Queries, 4>(kv, block, weights, factors, dim, sums);
  }
  for (; dim < kv.padded_head_dim; dim += lanes()) {
    add_values<Queries, 1>(kv, block, weights, factors, dim, sums);
  }
}

HWY_INLINE void add_all_values(const KvHead& kv, const Block& block, std::int64_t group,
                               const float* weights, const float* factors, float* sums) {
  std::int64_t i = 0;
  for (; i + max_queries <= group; i += max_queries) {
    add_values_of<max_queries>(kv, block, weights + i * block_tokens, factors + i,
                               sums + i * kv.padded_head_dim);
  }
  for (; i < group; ++i) {
    add_values_of<1>(kv, block, weights + i * block_tokens, factors + i,
                     sums + i * kv.padded_head_dim);
  }
}

/// Whether some of the tokens at hand are not to be seen.
enum class Visibility : std::uint8_t { all, some };

/// Turns a row of scores into weights exp(scale s - maximum), zero outside of [low, high), and
/// returns the factor by which what was summed before shrinks. `columns` is whole vectors.
template <Visibility Seen, class Store>
HWY_INLINE float weigh_some(const float* scores, std::int64_t columns, std::int64_t low,
                            std::int64_t high, float scale, float* maximum, float* denominator,
                            Store&& store) {
  const FloatTag d;
  const Vector first = hn::Set(d, static_cast<float>(low));
  const Vector end = hn::Set(d, static_cast<float>(high));
  const auto load = [&](std::int64_t t) {
    const Vector score = hn::Mul(hn::LoadU(d, scores + t), hn::Set(d, scale));
    if constexpr (Seen == Visibility::all) return score;
    const Vector index = hn::Iota(d, static_cast<float>(t));
    const auto seen = hn::And(hn::Ge(index, first), hn::Lt(index, end));
    return hn::IfThenElse(seen, score, hn::Set(d, minus_infinity));
  };
  Vector highest = hn::Set(d, *maximum);
  for (std::int64_t t = 0; t < columns; t += lanes()) highest = hn::Max(highest, load(t));
  const float new_maximum = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (new_maximum == minus_infinity) {  // nothing seen yet
    for (std::int64_t t = 0; t < columns; t += lanes()) store(hn::Zero(d), t);
    return 1.0F;
  }
  const Vector shift = hn::Set(d, new_maximum);
  Vector total = hn::Zero(d);
  for (std::int64_t t = 0; t < columns; t += lanes()) {
    const Vector weight = exp_of(hn::Sub(load(t), shift));
    total = hn::Add(total, weight);
    store(weight, t);
  }
  const float factor = std::exp(*maximum - new_maximum);
  *denominator = *denominator * factor + hn::GetLane(hn::SumOfLanes(d, total));
  *maximum = new_maximum;
  return factor;
}

template <class Store>
HWY_INLINE float weigh(const float* scores, std::int64_t columns, std::int64_t low,
                       std::int64_t high, float scale, float* maximum, float* denominator,
                       Store&& store) {
  if (low <= 0 && high >= columns) {
    return weigh_some<Visibility::all>(scores, columns, low, high, scale, maximum, denominator,
                                       store);
  }
  return weigh_some<Visibility::some>(scores, columns, low, high, scale, maximum, denominator,
                                      store);
}

/// A query as f32, padded with zeros.
HWY_INLINE void load_query(const GroupedQuery& query, std::int64_t i, float* to) {
  const KvHead& kv = query.kv;
  load_row(query.q + static_cast<std::size_t>(i * kv.head_dim) * size_bytes(kv.dtype), kv.head_dim,
           kv.dtype, to);
  std::fill(to + kv.head_dim, to + kv.padded_head_dim, 0.0F);
}

void attend(const GroupedQuery& query, const PartialAttention& out, void* scratch) {
  const FloatTag d;
  const KvHead& kv = query.kv;
  auto* scores = static_cast<float*>(scratch);
  float* factors = scores + query.group * block_tokens;
  float* q = nullptr;
  if (kv.dtype != DType::bf16 || kv.head_dim % 2 != 0 || !has_bf16_strips()) {
    q = factors + query.group;
    for (std::int64_t i = 0; i < query.group; ++i) load_query(query, i, q + i * kv.padded_head_dim);
  }
  std::fill(out.sum, out.sum + query.group * kv.padded_head_dim, 0.0F);
  std::fill(out.maximum, out.maximum + query.group, minus_infinity);
  std::fill(out.denominator, out.denominator + query.group, 0.0F);
  const std::int64_t head_bytes =
      2 * page_tokens * kv.padded_head_dim * static_cast<std::int64_t>(size_bytes(kv.dtype));
  const std::int64_t end_page = (query.end_token + page_tokens - 1) / page_tokens;

  for (std::int64_t base = query.first_token / block_tokens * block_tokens;
       base < query.end_token; base += block_tokens) {
    const Block block{base, std::max(base, query.first_token),
                      std::min(base + block_tokens, query.end_token)};
    for (std::int64_t page = block.low / page_tokens; page * page_tokens < block.high; ++page) {
      // The page of the next block that will be needed as much later as this one was fetched ahead.
      if (page + block_pages < end_page) fetch(kv.k(page + block_pages), head_bytes);
      score_page(query, page, q, scores + page * page_tokens - base);
    }
    const std::int64_t columns =
        ((block.high - base) + page_tokens - 1) / page_tokens * page_tokens;
    for (std::int64_t i = 0; i < query.group; ++i) {
      float* row = scores + i * block_tokens;
      factors[i] = weigh(row, columns, block.low - base, block.high - base, query.scale,
                         out.maximum + i, out.denominator + i,
                         [&](Vector weight, std::int64_t t) { hn::StoreU(weight, d, row + t); });
    }
    add_all_values(kv, block, query.group, scores, factors, out.sum);
  }
}

std::size_t attend_scratch_bytes(std::int64_t group, std::int64_t padded_head_dim) {
  return static_cast<std::size_t>(group * (block_tokens + 1 + padded_head_dim)) * sizeof(float);
}

void store_attention_row(const float* sum, float denominator, std::int64_t head_dim, DType dtype,
                         std::byte* out) {
  const float factor = 1.0F / denominator;
  float row[64];
  for (std::int64_t done = 0; done < head_dim; done += 64) {
    const std::int64_t some = std::min<std::int64_t>(64, head_dim - done);
    for (std::int64_t i = 0; i < some; ++i) row[i] = sum[done + i] * factor;
    store_row(row, some, dtype, out + static_cast<std::size_t>(done) * size_bytes(dtype));
  }
}

void combine_attention(const GroupedQuery& query, float* parts, std::int64_t num_parts,
                       std::byte* out) {
  const KvHead& kv = query.kv;
  const auto part = [&](std::int64_t p) {
    return PartialAttention::at(
        parts + p * PartialAttention::num_floats(query.group, kv.padded_head_dim), query.group,
        kv.padded_head_dim);
  };
  const PartialAttention total = part(0);
  for (std::int64_t i = 0; i < query.group; ++i) {
    float maximum = total.maximum[i];
    for (std::int64_t p = 1; p < num_parts; ++p) maximum = std::max(maximum, part(p).maximum[i]);
    float* sum = total.sum + i * kv.padded_head_dim;
    float denominator = 0.0F;
    for (std::int64_t p = 0; p < num_parts; ++p) {
      const PartialAttention from = part(p);
      const float factor = std::exp(from.maximum[i] - maximum);
      denominator += factor * from.denominator[i];
      const float* add = from.sum + i * kv.padded_head_dim;
      for (std::int64_t k = 0; k < kv.head_dim; ++k) {
        sum[k] = p == 0 ? factor * add[k] : sum[k] + factor * add[k];
      }
    }
    store_attention_row(
        sum, denominator, kv.head_dim, kv.dtype,
        out + static_cast<std::size_t>(i * kv.head_dim) * size_bytes(kv.dtype));
  }
}

void score_row(const GroupedQuery& query, float* scores, void* scratch) {
  auto* q = static_cast<float*>(scratch);
  load_query(query, 0, q);
  float page_scores_of_one[block_tokens];
  for (std::int64_t token = query.first_token; token < query.end_token;) {
    const std::int64_t page = token / page_tokens;
    score_queries<1>(query.kv, query.kv.k(page), q, 0, page_scores_of_one);
    for (; token < query.end_token && token / page_tokens == page; ++token) {
      scores[token - query.first_token] = query.scale * page_scores_of_one[token % page_tokens];
    }
  }
}

void value_row(const GroupedQuery& query, const float* scores, std::byte* out, void* scratch) {
  const FloatTag d;
  const KvHead& kv = query.kv;
  auto* sum = static_cast<float*>(scratch);
  float weights[block_tokens];
  std::fill(sum, sum + kv.padded_head_dim, 0.0F);
  float maximum = minus_infinity;
  float denominator = 0.0F;
  for (std::int64_t base = query.first_token / block_tokens * block_tokens;
       base < query.end_token; base += block_tokens) {
    const Block block{base, std::max(base, query.first_token),
                      std::min(base + block_tokens, query.end_token)};
    std::fill(weights, weights + block_tokens, 0.0F);
    std::copy(scores + (block.low - query.first_token), scores + (block.high - query.first_token),
              weights + (block.low - base));
    const float factor =
        weigh(weights, block_tokens, block.low - base, block.high - base, 1.0F, &maximum,
              &denominator,
              [&](Vector weight, std::int64_t t) { hn::StoreU(weight, d, weights + t); });
    add_all_values(kv, block, 1, weights, &factor, sum);
  }
  store_attention_row(sum, denominator, kv.head_dim, kv.dtype, out);
}

void softmax_tile(const SoftmaxTile& tile) {
  const FloatTag d;
  HWY_ALIGN float rests[block_tokens];
  const hn::Rebind<std::int32_t, FloatTag> d32;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t position = tile.first_position + r;
    const std::int64_t low =
        first_visible_token(position, tile.sliding_window_tokens) - tile.first_token;
    const std::int64_t high = position + 1 - tile.first_token;
    const float factor =
        weigh(tile.scores + r * tile.stride, tile.columns, low, high, tile.scale, tile.maximum + r,
              tile.denominator + r,
              [&](Vector weight, std::int64_t t) {
                // Cut, not rounded: the rest takes what is lost.
                const auto words = hn::BitCast(WordTag(), weight);
                hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32, hn::ShiftRight<16>(words))), d16,
                           tile.weights + r * tile.stride + t);
                hn::Store(hn::Sub(weight, upper(words)), d, rests + t);
              });
    store_row(rests, tile.columns, DType::bf16, tile.rests + r * tile.stride);
    if (factor == 1.0F) continue;
    float* sum = tile.sum + r * tile.sum_columns;
    const Vector shrink = hn::Set(d, factor);
    for (std::int64_t i = 0; i < tile.sum_columns; i += lanes()) {
      hn::StoreU(hn::Mul(shrink, hn::LoadU(d, sum + i)), d, sum + i);
    }
  }
}

}  // namespace sluice::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::simd {

HWY_EXPORT(attend);
HWY_EXPORT(attend_scratch_bytes);
HWY_EXPORT(combine_attention);
HWY_EXPORT(score_row);
HWY_EXPORT(value_row);
HWY_EXPORT(softmax_tile);
HWY_EXPORT(store_attention_row);

std::size_t attend_scratch_bytes(std::int64_t group, std::int64_t padded_head_dim) {
  return HWY_DYNAMIC_DISPATCH(attend_scratch_bytes)(group, padded_head_dim);
}
void attend(const GroupedQuery& query, const PartialAttention& out, void* scratch) {
  HWY_DYNAMIC_DISPATCH(attend)(query, out, scratch);
}
void combine_attention(const GroupedQuery& query, float* parts, std::int64_t num_parts,
                       std::byte* out) {
  HWY_DYNAMIC_DISPATCH(combine_attention)(query, parts, num_parts, out);
}
void score_row(const GroupedQuery& query, float* scores, void* scratch) {
  HWY_DYNAMIC_DISPATCH(score_row)(query, scores, scratch);
}
void value_row(const GroupedQuery& query, const float* scores, std::byte* out, void* scratch) {
  HWY_DYNAMIC_DISPATCH(value_row)(query, scores, out, scratch);
}
void softmax_tile(const SoftmaxTile& tile) { HWY_DYNAMIC_DISPATCH(softmax_tile)(tile); }
void store_attention_row(const float* sum, float denominator, std::int64_t head_dim, DType dtype,
                         std::byte* out) {
  HWY_DYNAMIC_DISPATCH(store_attention_row)(sum, denominator, head_dim, dtype, out);
}

}  // namespace sluice::simd
#endif
