#include "codelets/kernels/attention_simd.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "codelets/kernels/bf16_arithmetic.h"
#include "codelets/kernels/flush_subnormals.h"
#include "codelets/kernels/page_attention.h"
#include "codelets/kernels/prefetch.h"
#include "codelets/kernels/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/attention_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "codelets/kernels/multiply_add-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::simd::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): of this target

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
/// Vectors of a page's tokens, or of a head, over which the sums of up to four queries are held in
/// registers: enough of them to hide the latency of a multiply-add.
constexpr int token_vectors = static_cast<int>(std::bit_floor(
    static_cast<unsigned>(std::min(static_cast<int>(page_tokens) / lanes, max_sums / 4))));
static_assert(page_tokens % (token_vectors * lanes) == 0);
constexpr int head_vectors = HWY_MAX_BYTES >= 64 ? 4 : 2;
/// Sums that hide the latency of a multiply-add.
constexpr int sums_in_flight = 8;

/// With as many queries a KV head, what lies ahead is fetched: the arithmetic and the rows of their
/// own that it touches interrupt the stream so often that the hardware falls behind. With fewer,
/// the hardware may foresee more than the fetches, of which a core keeps too few on their way.
std::int64_t queries_worth_fetching() { return core_prefetches_enough() ? 4 : 1; }
/// KV heads between the one that is computed and the one that is fetched meanwhile.
constexpr std::int64_t heads_far = 4;
/// The same where also the first-level cache is fetched into; 0: it is not.
std::int64_t heads_near() { return core_prefetches_enough() ? 0 : 1; }

/// 2^x for x <= 100, to 1e-7 of itself; 0 below -126, where no normal number is left. Softmax needs
/// no more than this part of Highway's Exp, at half its instructions.
HWY_INLINE Vector exp2_of(Vector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const Vector least = hn::Set(d, -126.0F);
  const auto vanishes = hn::Lt(x, least);
  x = hn::Max(least, x);  // in this order it leaves what is no number
  // Numbers of this size have no fraction: adding one rounds x into the sum's lowest bits, beside
  // an exponent's bias.
  const Vector whole_numbers = hn::Set(d, 12582912.0F + 127.0F);  // 1.5 * 2^23
  const Vector rounded = hn::Add(x, whole_numbers);
  const Vector f = hn::Sub(x, hn::Sub(rounded, whole_numbers));  // in [-0.5, 0.5]
  // Taylor's series of 2^f: ln(2)^n / n!; the first term left out is below 1.3e-8 of the sum.
  Vector y = hn::Set(d, 1.5252734e-5F);
  y = hn::MulAdd(y, f, hn::Set(d, 1.5403530e-4F));
  y = hn::MulAdd(y, f, hn::Set(d, 1.3333558e-3F));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6181291e-3F));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5504109e-2F));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022651e-1F));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314718e-1F));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0F));
  const Vector power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, rounded)));
  return hn::IfThenZeroElse(vanishes, hn::Mul(y, power));
}
constexpr float log2_of_e = 1.44269504F;

/// The functions below fetch, while they compute, what lies `ahead` bytes behind what they read
/// into the second-level cache; 0: nothing.
HWY_INLINE void fetch(const std::byte* read, std::int64_t num_bytes, std::int64_t ahead) {
  if (ahead == 0) return;
  for (std::int64_t at = 0; at < num_bytes; at += 64) __builtin_prefetch(read + ahead + at, 0, 2);
}

/// Calls body(count, i) for queries [i, i + count) of a group: four at once, then two, then one.
template <class Body>
HWY_INLINE void in_fours(std::int64_t group, Body&& body) {
  std::int64_t i = 0;
  for (; i + 4 <= group; i += 4) body(std::integral_constant<int, 4>(), i);
  if (i + 2 <= group) {
    body(std::integral_constant<int, 2>(), i);
    i += 2;
  }
  if (i < group) body(std::integral_constant<int, 1>(), i);
}

/// scores[i, 0..16) = q_i . k for `Queries` queries and one page of keys. q is f32, padded. Not
/// inlined, like add_values_of(): what the caller holds in registers would push the sums out.
template <class Rows, int Queries>
HWY_NOINLINE void score_queries(const KvHeads& kv, const std::byte* k, std::int64_t ahead,
                                const float* q, float* scores) {
  const FloatTag d;
  const std::int64_t stride = kv.padded_head_dim;
  // Few queries get several sums each, of the elements in turn.
  constexpr int chains = std::max(1, sums_in_flight / (Queries * token_vectors));
  constexpr int pairs = std::max(1, chains / 2);
  static_assert(16 % (2 * pairs) == 0, "a head is padded to whole sixteens");
  for (std::int64_t t = 0; t < page_tokens; t += token_vectors * lanes) {
    // The pragmas keep the sums in registers.
    Vector sum[chains][Queries][token_vectors];
#pragma GCC unroll 8
    for (int chain = 0; chain < chains; ++chain) {
#pragma GCC unroll 4
      for (int n = 0; n < Queries; ++n) {
#pragma GCC unroll 4
        for (int j = 0; j < token_vectors; ++j) sum[chain][n][j] = hn::Zero(d);
      }
    }
    for (std::int64_t first = 0; first < kv.padded_head_dim / 2; first += pairs) {
#pragma GCC unroll 8
      for (int step = 0; step < 2 * pairs; ++step) {
        const int part = step % 2;
        const std::int64_t pair = first + step / 2;
        constexpr std::int64_t pair_bytes = Rows::pair_bytes * page_tokens;
        if (part == 0) fetch(k + pair * pair_bytes, pair_bytes, ahead);
        Vector keys[token_vectors];
#pragma GCC unroll 4
        for (int j = 0; j < token_vectors; ++j) {
          keys[j] =
              Rows::load(k + pair * pair_bytes, page_tokens, part, t + std::int64_t{lanes} * j);
        }
#pragma GCC unroll 4
        for (int n = 0; n < Queries; ++n) {
          const Vector element = hn::Set(d, q[n * stride + 2 * pair + part]);
#pragma GCC unroll 4
          for (int j = 0; j < token_vectors; ++j)
            add_product(sum[step % chains][n][j], element, keys[j]);
        }
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < Queries; ++n) {
#pragma GCC unroll 4
      for (int j = 0; j < token_vectors; ++j) {
#pragma GCC unroll 8
        for (int chain = 1; chain < chains; ++chain)
          sum[0][n][j] = hn::Add(sum[0][n][j], sum[chain][n][j]);
        hn::StoreU(sum[0][n][j], d, scores + n * page_tokens + t + std::int64_t{lanes} * j);
      }
    }
  }
}

template <class Rows>
HWY_INLINE void score_group_of(const KvHeads& kv, const std::byte* k, std::int64_t ahead,
                               const float* q, std::int64_t group, float* scores) {
  in_fours(group, [&](auto count, std::int64_t i) {
    score_queries<Rows, count.value>(kv, k, i == 0 ? ahead : 0, q + i * kv.padded_head_dim,
                                     scores + i * page_tokens);
  });
}

HWY_INLINE void score_group(const KvHeads& kv, const std::byte* k, std::int64_t ahead,
                            const float* q, std::int64_t group, float* scores) {
  kv.dtype == DType::bf16 ? score_group_of<Bf16Rows>(kv, k, ahead, q, group, scores)
                          : score_group_of<F32Rows>(kv, k, ahead, q, group, scores);
}

/// Tokens [low, high) of a page.
struct Part {
  std::int64_t low, high;
  bool is_whole() const { return low == 0 && high == page_tokens; }
};

/// sum_i += w[i, token] v_token
template <class Rows, int Queries, int Vectors>
HWY_INLINE void add_value(const std::byte* pair, std::int64_t columns, int part, std::int64_t dim,
                          const float* weights, Vector (&sum)[Queries][Vectors]) {
  Vector values[Vectors];
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; ++j) {
    values[j] = Rows::load(pair, columns, part, dim + std::int64_t{lanes} * j);
  }
#pragma GCC unroll 4
  for (int n = 0; n < Queries; ++n) {
    const Vector weight = hn::Set(FloatTag(), weights[n * page_tokens]);
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) add_product(sum[n][j], weight, values[j]);
  }
}

/// sum_i += sum_t w[i, t] v_t over `Vectors` vectors of the head from `dim` on.
template <class Rows, int Queries, int Vectors>
HWY_INLINE void add_values(const KvHeads& kv, const std::byte* v, std::int64_t ahead,
                           const Part& part, const float* weights, std::int64_t dim, float* sums) {
  const FloatTag d;
  const std::int64_t columns = kv.padded_head_dim;
  Vector sum[Queries][Vectors];
#pragma GCC unroll 4
  for (int n = 0; n < Queries; ++n) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      sum[n][j] = hn::LoadU(d, sums + n * columns + dim + j * lanes);
  }
  const std::int64_t pair_bytes = Rows::pair_bytes * columns;
  const std::byte* pair = v + part.low / 2 * pair_bytes;
  std::int64_t token = part.low;
  if (token % 2 == 1) {
    add_value<Rows>(pair, columns, 1, dim, weights + token, sum);
    pair += pair_bytes;
    ++token;
  }
  for (; token + 2 <= part.high; token += 2, pair += pair_bytes) {
    fetch(pair + dim * 4, std::int64_t{Vectors} * lanes * 4, ahead);
    add_value<Rows>(pair, columns, 0, dim, weights + token, sum);
    add_value<Rows>(pair, columns, 1, dim, weights + token + 1, sum);
  }
  if (token < part.high) add_value<Rows>(pair, columns, 0, dim, weights + token, sum);
#pragma GCC unroll 4
  for (int n = 0; n < Queries; ++n) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      hn::StoreU(sum[n][j], d, sums + n * columns + dim + j * lanes);
  }
}

template <class Rows, int Queries>
HWY_INLINE void add_part_values(const KvHeads& kv, const std::byte* v, std::int64_t ahead,
                                const Part& part, const float* weights, float* sums) {
  std::int64_t dim = 0;
  constexpr int vectors = Queries == 1 ? 4 : head_vectors;
  for (; dim + vectors * lanes <= kv.padded_head_dim; dim += vectors * lanes) {
    add_values<Rows, Queries, vectors>(kv, v, ahead, part, weights, dim, sums);
  }
  for (; dim < kv.padded_head_dim; dim += lanes) {
    add_values<Rows, Queries, 1>(kv, v, ahead, part, weights, dim, sums);
  }
}

template <class Rows, int Queries>
HWY_NOINLINE void add_values_of(const KvHeads& kv, const std::byte* v, std::int64_t ahead,
                                const Part& part, const float* weights, float* sums) {
  constexpr Part whole{0, page_tokens};  // limits that the compiler knows
  part.is_whole() ? add_part_values<Rows, Queries>(kv, v, ahead, whole, weights, sums)
                  : add_part_values<Rows, Queries>(kv, v, ahead, part, weights, sums);
}

template <class Rows>
HWY_INLINE void add_group_values_of(const KvHeads& kv, const std::byte* v, std::int64_t ahead,
                                    const Part& part, std::int64_t group, const float* weights,
                                    float* sums) {
  in_fours(group, [&](auto count, std::int64_t i) {
    add_values_of<Rows, count.value>(kv, v, i == 0 ? ahead : 0, part, weights + i * page_tokens,
                                     sums + i * kv.padded_head_dim);
  });
}

HWY_INLINE void add_group_values(const KvHeads& kv, const std::byte* v, std::int64_t ahead,
                                 const Part& part, std::int64_t group, const float* weights,
                                 float* sums) {
  kv.dtype == DType::bf16 ? add_group_values_of<Bf16Rows>(kv, v, ahead, part, group, weights, sums)
                          : add_group_values_of<F32Rows>(kv, v, ahead, part, group, weights, sums);
}

/// Whether some of the tokens at hand are not to be seen.
enum class Visibility : std::uint8_t { all, some };

/// Turns a row of scores into weights 2^(scale s - maximum), zero outside of [low, high), and
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
  for (std::int64_t t = 0; t < columns; t += lanes) highest = hn::Max(highest, load(t));
  const float new_maximum = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (new_maximum == minus_infinity) {  // nothing seen yet
    for (std::int64_t t = 0; t < columns; t += lanes) store(hn::Zero(d), t);
    return 1.0F;
  }
  const Vector shift = hn::Set(d, new_maximum);
  Vector total = hn::Zero(d);
  for (std::int64_t t = 0; t < columns; t += lanes) {
    const Vector weight = exp2_of(hn::Sub(load(t), shift));
    total = hn::Add(total, weight);
    store(weight, t);
  }
  const float factor = std::exp2(*maximum - new_maximum);
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

HWY_INLINE void scale_row(float factor, std::int64_t n, float* row) {
  const FloatTag d;
  const Vector by = hn::Set(d, factor);
  for (std::int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(by, hn::LoadU(d, row + i)), d, row + i);
  }
}

/// A page's scores of query i become weights 2^(scale s - maximum), zero outside of `part`. When a
/// score exceeds the maximum by more than score_slack, what was summed before shrinks.
HWY_INLINE void weigh_page(const GroupedQuery& query, const Part& part, float scale, std::int64_t i,
                           const PartialAttention& out, float* scores) {
  const FloatTag d;
  constexpr std::int64_t vectors = page_tokens / lanes;
  const bool whole = part.is_whole();
  Vector score[vectors];
  for (std::int64_t n = 0; n < vectors; ++n) {
    score[n] = hn::LoadU(d, scores + n * lanes);
    if (whole) continue;
    const Vector index = hn::Iota(d, static_cast<float>(n * lanes));
    const auto seen = hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(part.low))),
                              hn::Lt(index, hn::Set(d, static_cast<float>(part.high))));
    score[n] = hn::IfThenElse(seen, score[n], hn::Set(d, minus_infinity));
  }
  const Vector factor = hn::Set(d, scale);
  const auto above = [&](std::int64_t n, float maximum) {
    return hn::MulSub(score[n], factor, hn::Set(d, maximum));
  };
  auto fits = hn::Le(above(0, out.maximum[i]), hn::Set(d, score_slack));
  for (std::int64_t n = 1; n < vectors; ++n)
    fits = hn::And(fits, hn::Le(above(n, out.maximum[i]), hn::Set(d, score_slack)));
  float* denominators = out.denominators + i * page_tokens;
  if (HWY_UNLIKELY(!hn::AllTrue(d, fits))) {
    Vector highest = hn::Set(d, out.maximum[i]);
    for (const Vector& value : score) highest = hn::Max(highest, hn::Mul(value, factor));
    const float maximum = hn::GetLane(hn::MaxOfLanes(d, highest));
    const float shrinks = std::exp2(out.maximum[i] - maximum);
    scale_row(shrinks, query.kv.padded_head_dim, out.sum + i * query.kv.padded_head_dim);
    scale_row(shrinks, page_tokens, denominators);
    out.maximum[i] = maximum;
  }
  for (std::int64_t n = 0; n < vectors; ++n) {
    float* sum = denominators + n * lanes;
    const Vector weight = exp2_of(above(n, out.maximum[i]));
    hn::StoreU(hn::Add(hn::LoadU(d, sum), weight), d, sum);
    hn::StoreU(weight, d, scores + n * lanes);
  }
}

/// A query as f32, padded with zeros.
HWY_INLINE void load_query(const GroupedQuery& query, std::int64_t i, float* to) {
  const KvHeads& kv = query.kv;
  load_row(query.q + static_cast<std::size_t>(i * kv.head_dim) * size_bytes(kv.dtype), kv.head_dim,
           kv.dtype, to);
  std::fill(to + kv.head_dim, to + kv.padded_head_dim, 0.0F);
}

void attend(const GroupedQuery& query, const PartialAttention& out, void* scratch) {
  const KvHeads& kv = query.kv;
  const std::int64_t padded = kv.padded_head_dim;
  const Bf16Arithmetic arithmetic = fastest_bf16_arithmetic();
  const bool avx512 =
      kv.dtype == DType::bf16 && kv.head_dim % 2 == 0 && arithmetic != Bf16Arithmetic::portable;
  const bool dot_products = avx512 && arithmetic == Bf16Arithmetic::dot_products;
  [[maybe_unused]] const FlushSubnormals flush;  // that KV may hold
  const std::int64_t num_queries = query.num_queries();
  auto* scores = static_cast<float*>(scratch);
  float* q = scores + num_queries * page_tokens;
  for (std::int64_t i = 0; i < num_queries && !dot_products; ++i)
    load_query(query, i, q + i * padded);
  std::fill(out.sum, out.sum + num_queries * padded, 0.0F);
  std::fill(out.denominators, out.denominators + num_queries * page_tokens, 0.0F);
  std::fill(out.maximum, out.maximum + num_queries, minus_infinity);

  const bool fetches = query.group >= queries_worth_fetching();
  const float scale = query.scale * log2_of_e;
  for (std::int64_t page = query.first_token / page_tokens; page * page_tokens < query.end_token;
       ++page) {
    const Part part{std::max(query.first_token - page * page_tokens, std::int64_t{0}),
                    std::min(query.end_token - page * page_tokens, page_tokens)};
    const bool is_last = page + 1 == static_cast<std::int64_t>(kv.pages.size());
    // K and V of the head that is read so many heads later.
    const auto later = [&](std::int64_t head, std::int64_t heads) {
      const bool in_page = head + heads < kv.num_heads;
      if (!fetches || heads == 0 || (!in_page && is_last)) return PageFetch{};
      const std::int64_t its_page = in_page ? page : page + 1;
      const std::int64_t its_head = (head + heads) % kv.num_heads;
      return PageFetch{kv.k(its_page, its_head), kv.v(its_page, its_head)};
    };
    for (std::int64_t head = 0; head < kv.num_heads; ++head) {
      const std::int64_t first = head * query.group;
      const auto* head_q = reinterpret_cast<const std::uint16_t*>(query.q) + first * kv.head_dim;
      const auto* head_k = reinterpret_cast<const std::uint16_t*>(kv.k(page, head));
      if (avx512 && part.is_whole()) {
        attend_page({.queries = query.group,
                     .depth = kv.head_dim,
                     .q = head_q,
                     .wide_q = q + first * padded,
                     .k = head_k,
                     .columns = padded,
                     .v = reinterpret_cast<const std::uint16_t*>(kv.v(page, head)),
                     .scale = scale,
                     .sum = out.sum + first * padded,
                     .denominators = out.denominators + first * page_tokens,
                     .maximum = out.maximum + first,
                     .far = later(head, heads_far),
                     .near = later(head, heads_near())});
        continue;
      }
      const PageFetch fetched = later(head, heads_far);
      // V's, too. In f32 the hardware keeps up.
      const bool is_bf16 = kv.dtype == DType::bf16;
      const std::int64_t ahead = fetched && is_bf16 ? fetched.k - kv.k(page, head) : 0;
      if (dot_products) {
        page_scores({.queries = query.group,
                     .depth = kv.head_dim,
                     .q = head_q,
                     .q_stride = kv.head_dim,
                     .k = head_k,
                     .scores = scores});
      } else {
        score_group(kv, kv.k(page, head), ahead, q + first * padded, query.group, scores);
      }
      for (std::int64_t i = 0; i < query.group; ++i) {
        weigh_page(query, part, scale, first + i, out, scores + i * page_tokens);
      }
      add_group_values(kv, kv.v(page, head), ahead, part, query.group, scores,
                       out.sum + first * padded);
    }
  }
}

std::size_t attend_scratch_bytes(std::int64_t num_queries, std::int64_t padded_head_dim) {
  return static_cast<std::size_t>(num_queries * (page_tokens + padded_head_dim)) * sizeof(float);
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
  const FloatTag d;
  const KvHeads& kv = query.kv;
  const std::int64_t num_queries = query.num_queries();
  const auto part = [&](std::int64_t p) {
    return PartialAttention::at(
        parts + p * PartialAttention::num_floats(num_queries, kv.padded_head_dim), num_queries,
        kv.padded_head_dim);
  };
  const PartialAttention total = part(0);
  for (std::int64_t i = 0; i < num_queries; ++i) {
    float maximum = total.maximum[i];
    for (std::int64_t p = 1; p < num_parts; ++p) maximum = std::max(maximum, part(p).maximum[i]);
    float* sum = total.sum + i * kv.padded_head_dim;
    float* denominators = total.denominators + i * page_tokens;
    const auto add = [&](float factor, const float* from, std::int64_t n, float* to) {
      for (std::int64_t k = 0; k < n; k += lanes) {
        const Vector sum_so_far = hn::LoadU(d, to + k);
        hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, from + k), sum_so_far), d, to + k);
      }
    };
    const float first_factor = std::exp2(total.maximum[i] - maximum);
    scale_row(first_factor, kv.padded_head_dim, sum);
    scale_row(first_factor, page_tokens, denominators);
    for (std::int64_t p = 1; p < num_parts; ++p) {
      const PartialAttention from = part(p);
      const float factor = std::exp2(from.maximum[i] - maximum);
      add(factor, from.sum + i * kv.padded_head_dim, kv.padded_head_dim, sum);
      add(factor, from.denominators + i * page_tokens, page_tokens, denominators);
    }
    Vector denominator = hn::Zero(d);
    for (std::int64_t t = 0; t < page_tokens; t += lanes) {
      denominator = hn::Add(denominator, hn::LoadU(d, denominators + t));
    }
    float whole = hn::GetLane(hn::SumOfLanes(d, denominator));
    if (query.sinks != nullptr) whole += sink_weight(query.sinks[i], maximum);
    store_attention_row(sum, whole, kv.head_dim, kv.dtype,
                        out + static_cast<std::size_t>(i * kv.head_dim) * size_bytes(kv.dtype));
  }
}

void score_row(const GroupedQuery& query, float* scores, void* scratch) {
  auto* q = static_cast<float*>(scratch);
  load_query(query, 0, q);
  float in_page[page_tokens];
  for (std::int64_t token = query.first_token; token < query.end_token;) {
    const std::int64_t page = token / page_tokens;
    score_group(query.kv, query.kv.k(page, 0), 0, q, 1, in_page);
    for (; token < query.end_token && token / page_tokens == page; ++token) {
      scores[token - query.first_token] = query.scale * in_page[token % page_tokens];
    }
  }
}

void value_row(const GroupedQuery& query, const float* scores, std::byte* out, void* scratch) {
  const KvHeads& kv = query.kv;
  auto* sum = static_cast<float*>(scratch);
  std::fill(sum, sum + kv.padded_head_dim, 0.0F);
  const std::int64_t count = query.end_token - query.first_token;
  const float maximum = *std::max_element(scores, scores + count);
  float denominator = 0.0F;
  float weights[page_tokens];
  for (std::int64_t token = query.first_token; token < query.end_token;) {
    const std::int64_t page = token / page_tokens;
    const Part part{token % page_tokens,
                    std::min(query.end_token - page * page_tokens, page_tokens)};
    for (std::int64_t t = part.low; t < part.high; ++t, ++token) {
      weights[t] = std::exp(scores[token - query.first_token] - maximum);
      denominator += weights[t];
    }
    add_group_values(kv, kv.v(page, 0), 0, part, 1, weights, sum);
  }
  if (query.sinks != nullptr) denominator += std::exp(query.sinks[0] - maximum);
  store_attention_row(sum, denominator, kv.head_dim, kv.dtype, out);
}

void softmax_tile(const SoftmaxTile& tile) {
  const FloatTag d;
  HWY_ALIGN float rests[max_tile_tokens];
  const hn::Rebind<std::int32_t, FloatTag> d32;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t position = tile.first_position + r;
    const std::int64_t low =
        first_visible_token(position, tile.sliding_window_tokens) - tile.first_token;
    const std::int64_t high = position + 1 - tile.first_token;
    float* scores = tile.scores + r * tile.stride;
    const auto weigh_by = [&](auto&& store) {
      return weigh(scores, tile.columns, low, high, tile.scale * log2_of_e, tile.maximum + r,
                   tile.denominator + r, store);
    };
    float factor = 1.0F;
    if (tile.weights == nullptr) {
      factor = weigh_by([&](Vector weight, std::int64_t t) { hn::StoreU(weight, d, scores + t); });
    } else {
      factor = weigh_by([&](Vector weight, std::int64_t t) {
        // Cut, not rounded: the rest takes what is lost.
        const auto words = hn::BitCast(WordTag(), weight);
        hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32, hn::ShiftRight<16>(words))), d16,
                   tile.weights + r * tile.stride + t);
        hn::Store(hn::Sub(weight, upper(words)), d, rests + t);
      });
      store_row(rests, tile.columns, DType::bf16, tile.rests + r * tile.stride);
    }
    if (factor != 1.0F) scale_row(factor, tile.sum_columns, tile.sum + r * tile.sum_columns);
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

std::size_t attend_scratch_bytes(std::int64_t num_queries, std::int64_t padded_head_dim) {
  return HWY_DYNAMIC_DISPATCH(attend_scratch_bytes)(num_queries, padded_head_dim);
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
