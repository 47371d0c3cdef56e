#include "codelets/kernels/page_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "codelets/runtime/batch.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice {
namespace {

#define SLUICE_BF16_TARGET gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

static_assert(page_tokens == 16, "a KV page's tokens are the lanes of a vector");
constexpr __mmask16 all_lanes = 0xffff;  // unmasked, some calls make GCC 12 warn of its own header

/// Whether memory that is needed soon is fetched meanwhile.
enum class Fetch : std::uint8_t { nothing, ahead };

/// Two neighbouring elements in all lanes.
[[SLUICE_BF16_TARGET]] inline __m512bh broadcast_pair(const std::uint16_t* a) {
  int pair = 0;
  std::memcpy(&pair, a, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

[[SLUICE_BF16_TARGET]] inline __m512bh load_pairs(const std::uint16_t* a) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(a));
}

/// Fetches a cache line into the second-level cache, here and nowhere else: the compiler would
/// gather several fetches, and a burst of them costs up to half of the bandwidth.
inline void fetch_line(const char* line) {
  asm volatile("prefetcht1 %0" : : "m"(*line) : "memory");
}

template <int Queries, Fetch Fetches>
[[SLUICE_BF16_TARGET, gnu::always_inline]] inline void score_tile(const std::uint16_t* q,
                                                                  std::int64_t q_stride,
                                                                  const std::uint16_t* k,
                                                                  std::int64_t depth, float* scores,
                                                                  const char* ahead) {
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
      if constexpr (Fetches == Fetch::ahead) {
        fetch_line(ahead + (pair + chain) * 64);
      }
      const __m512bh keys = load_pairs(k + (pair + chain) * 32);
#pragma GCC unroll 8
      for (int i = 0; i < Queries; ++i) {
        sum[i][chain] = _mm512_dpbf16_ps(
            sum[i][chain], broadcast_pair(q + i * q_stride + 2 * (pair + chain)), keys);
      }
    }
  }
  for (; pairs % chains != 0 && pair < pairs; ++pair) {
    const __m512bh keys = load_pairs(k + pair * 32);
#pragma GCC unroll 8
    for (int i = 0; i < Queries; ++i) {
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], broadcast_pair(q + i * q_stride + 2 * pair), keys);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Queries; ++i) {
#pragma GCC unroll 8
    for (int chain = 1; chain < chains; ++chain) {
      sum[i][0] = _mm512_add_ps(sum[i][0], sum[i][chain]);
    }
    _mm512_storeu_ps(scores + i * page_tokens, sum[i][0]);
  }
}

/// Weights as pairs of tokens in bf16, and what they lack.
struct SplitWeights {
  alignas(64) std::uint16_t high[page_tokens];
  std::uint16_t rest[page_tokens];
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

[[SLUICE_BF16_TARGET, gnu::always_inline]] inline void weigh(const PageAttention& call,
                                                             std::int64_t i, const float* scores,
                                                             SplitWeights* out) {
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
  const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(weight), _mm512_set1_epi32(0x8000));
  const __m512 high = _mm512_castsi512_ps(
      _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  _mm512_store_si512(
      out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_sub_ps(weight, high), high)));
}

/// Queries [first, first + Queries): elements [column, column + 16 Vectors) of their sums.
template <int Queries, int Vectors, Fetch Fetches>
[[SLUICE_BF16_TARGET, gnu::always_inline]] inline void value_tile(const SplitWeights* weights,
                                                                  const PageAttention& call,
                                                                  std::int64_t first,
                                                                  std::int64_t column) {
  // Few queries: the rests are summed apart, so that more sums run side by side.
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
    if constexpr (Fetches == Fetch::ahead) {
      for (int j = 0; j < Vectors; ++j) {
        fetch_line(static_cast<const char*>(call.v_ahead) + 2 * at + 64 * j);
      }
    }
    __m512bh values[Vectors];
    for (int j = 0; j < Vectors; ++j) values[j] = load_pairs(call.v + at + 32 * j);
    for (int i = 0; i < Queries; ++i) {
      const __m512bh high = broadcast_pair(weights[i].high + 2 * pair);
      const __m512bh rest = broadcast_pair(weights[i].rest + 2 * pair);
      for (int j = 0; j < Vectors; ++j) {
        sum[i][j][0] = _mm512_dpbf16_ps(sum[i][j][0], high, values[j]);
      }
      for (int j = 0; j < Vectors; ++j) {
        sum[i][j][chains - 1] = _mm512_dpbf16_ps(sum[i][j][chains - 1], rest, values[j]);
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
template <int Queries, Fetch Fetches>
[[SLUICE_BF16_TARGET, gnu::noinline]] void add_values(const SplitWeights* weights,
                                                      const PageAttention& call,
                                                      std::int64_t first) {
  std::int64_t column = 0;
  for (; column + 64 <= call.columns; column += 64) {
    value_tile<Queries, 4, Fetches>(weights, call, first, column);
  }
  for (; column < call.columns; column += 16) {
    value_tile<Queries, 1, Fetches>(weights, call, first, column);
  }
}

/// Queries [first, first + Queries).
template <int Queries, Fetch Fetches>
[[SLUICE_BF16_TARGET]] void attend_queries(const PageAttention& call, std::int64_t first) {
  alignas(64) float scores[Queries * page_tokens];
  SplitWeights weights[Queries];
  score_tile<Queries, Fetches>(call.q + first * call.depth, call.depth, call.k, call.depth, scores,
                               static_cast<const char*>(call.k_ahead));
#pragma GCC unroll 4
  for (int i = 0; i < Queries; ++i) weigh(call, first + i, scores + i * page_tokens, &weights[i]);
  add_values<Queries, Fetches>(weights, call, first);
}

template <Fetch Fetches>
void attend_some(const PageAttention& call, std::int64_t first) {
  switch (call.queries - first) {
    case 1:
      return attend_queries<1, Fetches>(call, first);
    case 2:
      return attend_queries<2, Fetches>(call, first);
    case 3:
      return attend_queries<3, Fetches>(call, first);
    default:
      return attend_queries<4, Fetches>(call, first);
  }
}

}  // namespace

[[SLUICE_BF16_TARGET]] void page_scores(const PageScores& call) {
  for (std::int64_t i = 0; i < call.queries;) {
    const std::uint16_t* q = call.q + i * call.q_stride;
    float* scores = call.scores + i * page_tokens;
    if (call.queries - i >= 4) {
      score_tile<4, Fetch::nothing>(q, call.q_stride, call.k, call.depth, scores, nullptr);
      i += 4;
    } else {
      score_tile<1, Fetch::nothing>(q, call.q_stride, call.k, call.depth, scores, nullptr);
      i += 1;
    }
  }
}

void attend_page(const PageAttention& call) {
  // Four queries at a time; what lies ahead need be fetched once.
  const bool fetches = call.k_ahead != nullptr && call.v_ahead != nullptr;
  fetches ? attend_some<Fetch::ahead>(call, 0) : attend_some<Fetch::nothing>(call, 0);
  for (std::int64_t first = 4; first < call.queries; first += 4) {
    attend_some<Fetch::nothing>(call, first);
  }
}

#undef SLUICE_BF16_TARGET

}  // namespace sluice

#else

namespace sluice {

void page_scores(const PageScores& /*call*/) { throw Error("no AVX512_BF16 on this CPU"); }
void attend_page(const PageAttention& /*call*/) { throw Error("no AVX512_BF16 on this CPU"); }

}  // namespace sluice

#endif
