#pragma once

#include <cstdint>

#include "base/weight_format.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/mma.h"

namespace sluice::cuda {

// Codes of 4 and 8 bits become bf16, exactly: with its 8 significant bits, bf16 has all whole
// numbers up to 256, all of E2M1 and all of E4M3. A pair is two bf16 in a word, the first in its
// lower half. sm_80.

/// a * b + c for both of a pair, rounded once; subnormals count.
__device__ inline std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#ifdef SLUICE_CUDA_EMULATION
  const auto half = [&](int shift) {
    const auto number = [&](std::uint32_t pair) {
      return to_float(BFloat16{static_cast<std::uint16_t>(pair >> shift)});
    };
    return std::uint32_t{to_bf16(std::fma(number(a), number(b), number(c))).bits} << shift;
  };
  return half(0) | half(16);
#elif __CUDA_ARCH__ >= 800
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  __trap();  // the caller asks for the device's generation first
  return 0;
#endif
}

constexpr std::uint32_t pair_of_ones = 0x3f803f80U;
constexpr std::uint32_t pair_of_signs = 0x80008000U;  ///< also -0, which a sum is not changed by

/// Of the bytes of two words, 0 to 3 those of `low`, the ones that the selector's hex digits name.
__device__ inline std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high,
                                             std::uint32_t selector) {
#ifdef SLUICE_CUDA_EMULATION
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  std::uint32_t chosen = 0;
  for (int bit = 0; bit < 32; bit += 8) {
    const std::uint32_t from = selector >> (bit / 2) & 7U;
    chosen |= static_cast<std::uint32_t>(bytes >> (8 * from) & 255U) << bit;
  }
  return chosen;
#else
  return __byte_perm(low, high, selector);
#endif
}

/// Two bytes of a word, the first two or the last two, in the lower bytes of a word's halves.
/// `upper` is what the upper bytes are.
__device__ inline std::uint32_t spread_low(std::uint32_t bytes, bool last, std::uint32_t upper) {
  return choose_bytes(bytes, upper, last ? 0x4342U : 0x4140U);
}
/// The same in the upper bytes, with zeros below.
__device__ inline std::uint32_t spread_high(std::uint32_t bytes, bool last) {
  return choose_bytes(bytes, 0, last ? 0x3424U : 0x1404U);
}

/// Code - 128 of two codes of 8 bits, each the lower byte of a half whose upper byte is 0x43. As
/// bf16 the lower 7 bits m are then 128 + m; from it go 128, or 256 where the code is below 128.
__device__ inline std::uint32_t centred_pair(std::uint32_t codes) {
  return fma_pair(codes & 0xff7fff7fU, pair_of_ones, (codes & 0x00800080U) ^ 0xc380c380U);
}

/// Two small floats, each at the top of a half, as bf16: the sign, and `Bits` of exponent and
/// mantissa moved to where bf16 has them, times `bias`, as a small float's exponents count from
/// elsewhere. Subnormals need nothing else.
template <int Shift, std::uint32_t Bits, std::uint32_t Bias>
__device__ std::uint32_t float_pair(std::uint32_t pair) {
  return fma_pair((pair & pair_of_signs) | (pair >> Shift & Bits), Bias, pair_of_signs);
}

/// What widen() adds to the codes of a column: less its zero point, byte `column` of `zero_points`.
template <WeightFormat::Codes codes>
__device__ std::uint32_t minus_zero_point(std::uint32_t zero_points, unsigned column) {
  const std::uint32_t byte = zero_points >> (8 * column) & 255U;
  const std::uint32_t both = byte | byte << 16;
  if constexpr (codes == WeightFormat::Codes::int4) return both | 0xc300c300U;  // -128 - byte
  return centred_pair(both | 0x43004300U) ^ pair_of_signs;                      // 128 - byte
}

/// Two of four codes, see widen().
template <WeightFormat::Codes codes, bool HasZeroPoints>
__device__ std::uint32_t widen_pair(std::uint32_t bytes, bool last, std::uint32_t minus) {
  if constexpr (codes == WeightFormat::Codes::int4) {  // 128 + code
    return fma_pair(spread_low(bytes, last, 0x43U), pair_of_ones,
                    HasZeroPoints ? minus : 0xc308c308U);
  } else if constexpr (codes == WeightFormat::Codes::int8) {
    const std::uint32_t centred = centred_pair(spread_low(bytes, last, 0x43U));
    return HasZeroPoints ? fma_pair(centred, pair_of_ones, minus) : centred;
  } else if constexpr (codes == WeightFormat::Codes::fp4) {
    return float_pair<6, 0x01c001c0U, 0x7e807e80U>(spread_high(bytes, last));  // 2^126
  } else {
    return float_pair<4, 0x07f007f0U, 0x7b807b80U>(spread_high(bytes, last));  // 2^120
  }
}

/// Four codes of a column, each in a byte, the first in the lowest, as the mma's k have them: of
/// int4 the byte's value, of fp4 the byte's upper half, whatever is below. `minus` is
/// minus_zero_point(). E4M3's NaN becomes 480: see with_nan().
template <WeightFormat::Codes codes, bool HasZeroPoints>
__device__ MmaB widen(std::uint32_t bytes, std::uint32_t minus) {
  return {{widen_pair<codes, HasZeroPoints>(bytes, false, minus),
           widen_pair<codes, HasZeroPoints>(bytes, true, minus)}};
}

/// The upper bit of each of four E4M3 that is NaN.
__device__ inline std::uint32_t nan_bits(std::uint32_t bytes) {
  return ((bytes & 0x7f7f7f7fU) + 0x01010101U) & 0x80808080U;
}
/// What widen() made of four E4M3, with NaN where one is.
__device__ inline MmaB with_nan(const MmaB& values, std::uint32_t bytes) {
  const auto nan_pair = [&](bool last) {
    const std::uint32_t bits = spread_high(nan_bits(bytes), last);
    return (bits - (bits >> 8)) | bits >> 9;  // 0x7fc0 for each
  };
  return {{values.word[0] | nan_pair(false), values.word[1] | nan_pair(true)}};
}

}  // namespace sluice::cuda
