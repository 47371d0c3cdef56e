#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#endif

namespace sluice {

#if defined(__x86_64__)

/// Either arithmetic on vectors of 16 pairs of bf16, as packed weights and KV pages hold them, as
/// the kernels' loops need it: `parts` steps a pair, each `add(sum, row(a, part), column(b, part))`
/// with Elements of `a`, two a pair, side by side. Only what uses DotProducts executes AVX512_BF16.
#define SLUICE_BF16_TARGET gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define SLUICE_BF16_INLINE SLUICE_BF16_TARGET, gnu::always_inline

struct DotProducts {
  using Element = std::uint16_t;
  using Vector = __m512bh;
  static constexpr int parts = 1;

  [[SLUICE_BF16_INLINE]] static inline Vector row(const Element* pair, int /*part*/) {
    int both = 0;
    std::memcpy(&both, pair, sizeof(both));
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
  }
  [[SLUICE_BF16_INLINE]] static inline Vector column(const std::uint16_t* pairs, int /*part*/) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs));
  }
  [[SLUICE_BF16_INLINE]] static inline __m512 add(__m512 sum, Vector row, Vector column) {
    return _mm512_dpbf16_ps(sum, row, column);
  }
};

constexpr __mmask16 all_lanes = 0xffff;  // unmasked, some calls make GCC 12 warn of its own header

/// The numbers whose bf16 the lower half of each word holds.
[[SLUICE_BF16_INLINE]] inline __m512 widen_lower(__m512i words) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all_lanes, words, 16));
}
/// 16 numbers widened to f32, zeros where there are none.
[[SLUICE_BF16_INLINE]] inline __m512 widen(__mmask16 exists, const std::uint16_t* numbers) {
  const __m256i halves = _mm256_maskz_loadu_epi16(exists, numbers);
  return widen_lower(_mm512_maskz_cvtepu16_epi32(all_lanes, halves));
}

struct MultiplyAdd {
  using Element = float;
  using Vector = __m512;
  static constexpr int parts = 2;

  [[SLUICE_BF16_INLINE]] static inline Vector row(const Element* pair, int part) {
    return _mm512_set1_ps(pair[part]);
  }
  [[SLUICE_BF16_INLINE]] static inline Vector column(const std::uint16_t* pairs, int part) {
    const __m512i both = _mm512_loadu_si512(pairs);
    if (part == 0) return widen_lower(both);
    return _mm512_castsi512_ps(
        _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  [[SLUICE_BF16_INLINE]] static inline __m512 add(__m512 sum, Vector row, Vector column) {
    return _mm512_fmadd_ps(row, column, sum);
  }
};

#endif

}  // namespace sluice
