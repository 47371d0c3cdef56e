#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codelets/kernels/quantized/digits.h"
#include "codelets/kernels/quantized/strip.h"

/// Codes, scales and zero points in vectors of AVX-512.
namespace sluice::quantized {

#define SLUICE_VNNI_TARGET gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define SLUICE_VNNI_INLINE SLUICE_VNNI_TARGET, gnu::always_inline

constexpr std::int64_t line = 4 * strip_columns;  ///< a word of codes of each column
constexpr __mmask16 all_lanes = 0xffff;  // unmasked, some calls make GCC 12 warn of its own header

/// Lines of codes that a step of depth has.
template <WeightFormat::Codes codes>
constexpr int step_lines = codes == WeightFormat::Codes::int8 ? 8 : 4;

/// Twice the values of E2M1's codes, moved above zero: fp4_offset is zero.
[[SLUICE_VNNI_INLINE]] inline __m512i fp4_values(__m512i codes) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(all_lanes, table), codes);
}

/// Codes as unsigned bytes: of a line of 4 bits its low, then its high nibbles.
template <WeightFormat::Codes codes>
[[SLUICE_VNNI_INLINE]] inline __m512i byte_codes(__m512i word, int part) {
  if constexpr (codes == WeightFormat::Codes::int8) return word;
  const __m512i nibbles =
      _mm512_and_si512(part == 0 ? word : _mm512_srli_epi16(word, 4), _mm512_set1_epi8(15));
  return codes == WeightFormat::Codes::fp4 ? fp4_values(nibbles) : nibbles;
}
/// Scales of 16 columns, from column 16 j on.
[[SLUICE_VNNI_INLINE]] inline __m512 load_scales(WeightFormat::Scales type, const std::byte* scales,
                                                 int j) {
  if (type == WeightFormat::Scales::f16) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales + 32 * j));
    return _mm512_maskz_cvtph_ps(all_lanes, halves);
  }
  if (type == WeightFormat::Scales::bf16) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales + 32 * j));
    return _mm512_castsi512_ps(
        _mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, halves), 16));
  }
  if (type == WeightFormat::Scales::f32) return _mm512_load_ps(scales + 64 * j);
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(scales + 16 * j));
  const __m512i exponents =
      _mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu8_epi32(all_lanes, bytes), 23);
  return _mm512_castsi512_ps(
      _mm512_maskz_max_epu32(all_lanes, exponents, _mm512_set1_epi32(0x00400000)));
}
[[SLUICE_VNNI_INLINE]] inline __m512i load_zero_points(const std::byte* zeros, int j) {
  return _mm512_maskz_cvtepu8_epi32(
      all_lanes, _mm_load_si128(reinterpret_cast<const __m128i*>(zeros + 16 * j)));
}

}  // namespace sluice::quantized

#endif
