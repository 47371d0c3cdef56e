#include "codelets/kernels/page_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "codelets/kernels/bf16_avx512.h"
#include "codelets/runtime/batch.h"

#if defined(__x86_64__)

namespace sluice {
namespace {

static_assert(page_tokens == 16, "a KV page's tokens are the lanes of a vector");

/// Whether memory that is needed soon is fetched meanwhile.
enum class Fetch : std::uint8_t { nothing, far, far_and_near };

/// Fetches a cache line each into the second-level and the first-level cache, here and nowhere
/// else: the compiler would gather several fetches, and a burst of them costs up to half of the
/// bandwidth.
template <Fetch Fetches>
[[gnu::always_inline]] inline void fetch_line(const std::byte* far, const std::byte* near,
                                              std::int64_t at) {
  if constexpr (Fetches != Fetch::nothing)
    asm volatile("prefetcht1 %0" : : "m"(far[at]) : "memory");
  if constexpr (Fetches == Fetch::far_and_near)
    asm volatile("prefetcht0 %0" : : "m"(near[at]) : "memory");
}

/// Queries [Queries, depth], and elements between them.
template <class Arithmetic>
struct QueryRows {
  const typename Arithmetic::Element* q;
  std::int64_t stride;
};

/// Adds a pair's products to the sums of a chain.
template <class Arithmetic, int Queries, int Chains>
[[SLUICE_BF16_INLINE]] inline void add_pair(const QueryRows<Arithmetic>& rows,
                                            const std::uint16_t* k, std::int64_t pair, int chain,
                                            __m512 (&sum)[Queries][Chains]) {
#pragma GCC unroll 2
  for (int part = 0; part < Arithmetic::parts; ++part) {
    const auto keys = Arithmetic::column(k + pair * 2 * page_tokens, part);
#pragma GCC unroll 8
    for (int i = 0; i < Queries; ++i) {
      sum[i][chain] = Arithmetic::add(
          sum[i][chain], Arithmetic::row(rows.q + i * rows.stride + 2 * pair, part), keys);
    }
  }
}

template <class Arithmetic, int Queries, Fetch Fetches>
[[SLUICE_BF16_INLINE]] inline void score_tile(const QueryRows<Arithmetic>& rows,
                                              const std::uint16_t* k, std::int64_t depth,
                                              float* scores, const PageFetch& far,
                                              const PageFetch& near) {
  // Enough independent sums to hide the instruction's latency. The pragmas keep them in registers.
  constexpr int chains = Queries == 1 ? 4 : 2;
  __m512 sum[Queries][chains];
#pragma GCC unroll 8
  for (int i = 0; i < Queries; ++i) {
#pragma GCC unroll 8
    for (int chain = 0; chain < chains; ++chain) sum[i][chain] = _mm512_setzero_ps();
  }
  const std::int64_t pairs = depth / 2;
  std::int64_t pair = 0;
  for (; pair + chains <= pairs; pair += chains) {
#pragma GCC unroll 8
    for (int chain = 0; chain < chains; ++chain) {
      fetch_line<Fetches>(far.k, near.k, (pair + chain) * 64);
      add_pair(rows, k, pair + chain, chain, sum);
    }
  }
  for (; pairs % chains != 0 && pair < pairs; ++pair) add_pair(rows, k, pair, 0, sum);
#pragma GCC unroll 8
  for (int i = 0; i < Queries; ++i) {
#pragma GCC unroll 8
    for (int chain = 1; chain < chains; ++chain) {
      sum[i][0] = _mm512_add_ps(sum[i][0], sum[i][chain]);
    }
    _mm512_storeu_ps(scores + i * page_tokens, sum[i][0]);
  }
}

/// A page's softmax weights as what the arithmetic sums up: each is the sum of its terms.
template <class Arithmetic>
struct Weights;
template <>
struct Weights<DotProducts> {
  static constexpr int terms = 2;  ///< the weight in bf16, and what it lacks
  alignas(64) std::uint16_t term[terms][page_tokens];

  [[SLUICE_BF16_INLINE]] inline void store(__m512 weight) {
    const __m512i rounded =
        _mm512_add_epi32(_mm512_castps_si512(weight), _mm512_set1_epi32(0x8000));
    const __m512 high = _mm512_castsi512_ps(
        _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
    _mm512_store_si512(
        term, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_sub_ps(weight, high), high)));
  }
};
template <>
struct Weights<MultiplyAdd> {
  static constexpr int terms = 1;
  alignas(64) float term[terms][page_tokens];

  [[SLUICE_BF16_INLINE]] inline void store(__m512 weight) { _mm512_store_ps(term, weight); }
};

/// 2^x to 1e-7 of itself; 0 where no normal number is left.
[[SLUICE_BF16_TARGET]] inline __m512 exp2_of(__m512 x) {
  constexpr int floor_imm = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 f = _mm512_maskz_reduce_ps(all_lanes, x, floor_imm);  // x - floor(x)
  // Through 2^f at the Chebyshev points of [0, 1].
  __m512 y = _mm512_set1_ps(1.89375406e-3F);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(8.94959042e-3F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.58603371e-2F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.40141818e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93154490e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.99999898e-1F));
  return _mm512_maskz_scalef_ps(all_lanes, y, x);  // y 2^floor(x)
}

/// Refers the sums of query i to the maximum of these scores and all before.
[[SLUICE_BF16_TARGET, gnu::noinline, gnu::cold]] void raise_maximum(const PageAttention& call,
                                                                    std::int64_t i,
                                                                    const float* scores) {
  const float before = call.maximum[i];
  float highest[page_tokens];
  for (std::int64_t t = 0; t < page_tokens; ++t) highest[t] = call.scale * scores[t];
  for (std::int64_t half = page_tokens / 2; half > 0; half /= 2) {
    for (std::int64_t t = 0; t < half; ++t) highest[t] = std::max(highest[t], highest[t + half]);
  }
  const float maximum = std::max(before, highest[0]);
  call.maximum[i] = maximum;
  if (before == -std::numeric_limits<float>::infinity()) return;  // nothing summed yet
  const float factor = std::exp2(before - maximum);
  for (std::int64_t c = 0; c < call.columns; ++c) call.sum[i * call.columns + c] *= factor;
  for (std::int64_t t = 0; t < page_tokens; ++t) {
    call.denominators[i * page_tokens + t] *= factor;
  }
}

[[SLUICE_BF16_INLINE]] inline __m512 weigh(const PageAttention& call, std::int64_t i,
                                           const float* scores) {
  const __m512 scale = _mm512_set1_ps(call.scale);
  const __m512 score = _mm512_load_ps(scores);
  __m512 above = _mm512_fmsub_ps(score, scale, _mm512_set1_ps(call.maximum[i]));
  if (_mm512_cmp_ps_mask(above, _mm512_set1_ps(score_slack), _CMP_NLE_UQ) != 0) [[unlikely]] {
    raise_maximum(call, i, scores);
    above = _mm512_fmsub_ps(score, scale, _mm512_set1_ps(call.maximum[i]));
  }
  const __m512 weight = exp2_of(above);
  float* denominators = call.denominators + i * page_tokens;
  _mm512_storeu_ps(denominators, _mm512_add_ps(_mm512_loadu_ps(denominators), weight));
  return weight;
}

/// Queries [first, first + Queries): elements [column, column + 16 Vectors) of their sums.
template <class Arithmetic, int Queries, int Vectors, Fetch Fetches>
[[SLUICE_BF16_INLINE]] inline void value_tile(const Weights<Arithmetic>* weights,
                                              const PageAttention& call, std::int64_t first,
                                              std::int64_t column) {
  constexpr int terms = Weights<Arithmetic>::terms;
  // Few queries: every other product is summed apart, so that more sums run side by side.
  constexpr int chains = Queries <= 2 ? 2 : 1;
  float* sums = call.sum + first * call.columns + column;
  __m512 sum[Queries][Vectors][chains];
  for (int i = 0; i < Queries; ++i) {
    for (int j = 0; j < Vectors; ++j) {
      sum[i][j][0] = _mm512_loadu_ps(sums + i * call.columns + 16 * j);
      if constexpr (chains == 2) sum[i][j][1] = _mm512_setzero_ps();
    }
  }
#pragma GCC unroll 8
  for (std::int64_t pair = 0; pair < page_tokens / 2; ++pair) {
    const std::int64_t at = 2 * (pair * call.columns + column);
    for (int j = 0; j < Vectors; ++j) {
      fetch_line<Fetches>(call.far.v, call.near.v, 2 * at + 64 * j);
    }
#pragma GCC unroll 2
    for (int part = 0; part < Arithmetic::parts; ++part) {
      typename Arithmetic::Vector values[Vectors];
      for (int j = 0; j < Vectors; ++j) values[j] = Arithmetic::column(call.v + at + 32 * j, part);
      for (int i = 0; i < Queries; ++i) {
#pragma GCC unroll 2
        for (int term = 0; term < terms; ++term) {
          const auto weight = Arithmetic::row(weights[i].term[term] + 2 * pair, part);
          const int chain = (part + term) % chains;
          for (int j = 0; j < Vectors; ++j) {
            sum[i][j][chain] = Arithmetic::add(sum[i][j][chain], weight, values[j]);
          }
        }
      }
    }
  }
  for (int i = 0; i < Queries; ++i) {
    for (int j = 0; j < Vectors; ++j) {
      if constexpr (chains == 2) sum[i][j][0] = _mm512_add_ps(sum[i][j][0], sum[i][j][1]);
      _mm512_storeu_ps(sums + i * call.columns + 16 * j, sum[i][j][0]);
    }
  }
}

/// Not inlined: GCC 12 would take the weights apart in registers instead of broadcasting them from
/// memory, at twice the instructions.
template <class Arithmetic, int Queries, Fetch Fetches>
[[SLUICE_BF16_TARGET, gnu::noinline]] void add_values(const Weights<Arithmetic>* weights,
                                                      const PageAttention& call,
                                                      std::int64_t first) {
  std::int64_t column = 0;
  for (; column + 64 <= call.columns; column += 64) {
    value_tile<Arithmetic, Queries, 4, Fetches>(weights, call, first, column);
  }
  for (; column < call.columns; column += 16) {
    value_tile<Arithmetic, Queries, 1, Fetches>(weights, call, first, column);
  }
}

QueryRows<DotProducts> query_rows(DotProducts /*arithmetic*/, const PageAttention& call,
                                  std::int64_t first) {
  return {call.q + first * call.depth, call.depth};
}
QueryRows<MultiplyAdd> query_rows(MultiplyAdd /*arithmetic*/, const PageAttention& call,
                                  std::int64_t first) {
  return {call.wide_q + first * call.columns, call.columns};
}

/// Queries [first, first + Queries).
template <class Arithmetic, int Queries, Fetch Fetches>
[[SLUICE_BF16_TARGET]] void attend_queries(const PageAttention& call, std::int64_t first) {
  alignas(64) float scores[Queries * page_tokens];
  Weights<Arithmetic> weights[Queries];
  score_tile<Arithmetic, Queries, Fetches>(query_rows(Arithmetic(), call, first), call.k,
                                           call.depth, scores, call.far, call.near);
#pragma GCC unroll 4
  for (int i = 0; i < Queries; ++i) {
    weights[i].store(weigh(call, first + i, scores + i * page_tokens));
  }
  add_values<Arithmetic, Queries, Fetches>(weights, call, first);
}

template <class Arithmetic, Fetch Fetches>
void attend_some(const PageAttention& call, std::int64_t first) {
  switch (call.queries - first) {
    case 1:
      return attend_queries<Arithmetic, 1, Fetches>(call, first);
    case 2:
      return attend_queries<Arithmetic, 2, Fetches>(call, first);
    case 3:
      return attend_queries<Arithmetic, 3, Fetches>(call, first);
    default:
      return attend_queries<Arithmetic, 4, Fetches>(call, first);
  }
}

template <class Arithmetic>
void attend_all(const PageAttention& call) {
  // Four queries at a time; what lies ahead need be fetched once.
  if (call.far && call.near) {
    attend_some<Arithmetic, Fetch::far_and_near>(call, 0);
  } else if (call.far) {
    attend_some<Arithmetic, Fetch::far>(call, 0);
  } else {
    attend_some<Arithmetic, Fetch::nothing>(call, 0);
  }
  for (std::int64_t first = 4; first < call.queries; first += 4) {
    attend_some<Arithmetic, Fetch::nothing>(call, first);
  }
}

}  // namespace

[[SLUICE_BF16_TARGET]] void page_scores(const PageScores& call) {
  for (std::int64_t i = 0; i < call.queries;) {
    const QueryRows<DotProducts> rows{call.q + i * call.q_stride, call.q_stride};
    float* scores = call.scores + i * page_tokens;
    if (call.queries - i >= 4) {
      score_tile<DotProducts, 4, Fetch::nothing>(rows, call.k, call.depth, scores, {}, {});
      i += 4;
    } else {
      score_tile<DotProducts, 1, Fetch::nothing>(rows, call.k, call.depth, scores, {}, {});
      i += 1;
    }
  }
}

void attend_page(const PageAttention& call) {
  if (call.arithmetic == Bf16Arithmetic::dot_products) {
    attend_all<DotProducts>(call);
  } else {
    attend_all<MultiplyAdd>(call);
  }
}

}  // namespace sluice

#else

namespace sluice {

void page_scores(const PageScores& /*call*/) { throw Error("no AVX-512 on this CPU"); }
void attend_page(const PageAttention& /*call*/) { throw Error("no AVX-512 on this CPU"); }

}  // namespace sluice

#endif
