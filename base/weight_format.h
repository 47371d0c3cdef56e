#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace sluice {

/// How the values of a weight W [out, in] are stored: f32 or bf16 as they are, or as short codes
/// with a scale that some of them share. Apart from the type of the arithmetic (DType). Plain data
/// without padding: it travels in codelet arguments, and is compared by its bytes.
struct WeightFormat {
  /// A code's value, before its scale is applied.
  enum class Codes : std::uint8_t {
    f32,
    bf16,
    int4,  ///< 0 to 15: code - 8, or code - zero point
    int8,  ///< 0 to 255: code - 128, or code - zero point
    fp4,   ///< E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same below zero (OCP MX, 5.3.3)
    fp8,   ///< E4M3 without infinities: at most 448 (OCP OFP8, section 5)
  };
  enum class Scales : std::uint8_t {
    none,
    f16,
    bf16,
    f32,
    e8m0,  ///< a power of two, 2^(byte - 127); 255 is no number (OCP MX, section 5.4.1)
  };

  Codes codes = Codes::bf16;
  Scales scales = Scales::none;
  bool has_zero_points = false;
  std::uint8_t group_rows = 1;  ///< rows of W that share a scale: 1 or 128
  std::uint16_t group = 0;      ///< inputs that share a scale; 0: all of a row

  bool operator==(const WeightFormat&) const = default;

  static constexpr WeightFormat plain(DType dtype) {
    return {.codes = dtype == DType::f32 ? Codes::f32 : Codes::bf16};
  }
  /// Values as they are, without scales.
  constexpr bool is_plain() const { return codes == Codes::f32 || codes == Codes::bf16; }
  /// Of a plain format.
  constexpr DType dtype() const { return codes == Codes::f32 ? DType::f32 : DType::bf16; }
  constexpr int bits_per_code() const {
    switch (codes) {
      case Codes::f32:
        return 32;
      case Codes::bf16:
        return 16;
      case Codes::int8:
      case Codes::fp8:
        return 8;
      default:
        return 4;
    }
  }
  /// Scales of a row `in` long; the last may be of fewer inputs.
  constexpr std::int64_t num_groups(std::int64_t in) const {
    if (is_plain()) return 0;
    return group == 0 ? 1 : (in + group - 1) / group;
  }
};

/// Bytes of one scale; 0 where there is none.
constexpr std::size_t size_bytes(WeightFormat::Scales scales) {
  switch (scales) {
    case WeightFormat::Scales::none:
      return 0;
    case WeightFormat::Scales::e8m0:
      return 1;
    case WeightFormat::Scales::f32:
      return 4;
    default:
      return 2;
  }
}

/// "none", "f16", "bf16", "f32", "e8m0".
constexpr std::string_view to_string(WeightFormat::Scales scales) {
  constexpr std::string_view names[] = {"none", "f16", "bf16", "f32", "e8m0"};
  return names[static_cast<std::size_t>(scales)];
}

/// "f32", "bf16", "int4-g32", "int8-g0", "int4-g128z" (with zero points), "mxfp4", "fp8-b128",
/// "fp8-row": as users write it. The type of the scales is not in it.
std::string to_string(const WeightFormat& format);

/// The format of that name; scales of int4 and int8 are f16, as GGUF's blocks have them, of fp8
/// f32. Throws Error for any other text, with the names that there are.
WeightFormat parse_weight_format(std::string_view text);

/// A code's value as an integer: code - zero point (8 of int4 and 128 of int8 where the format has
/// none), and of fp4 twice its value, -12 to 12. Not for fp8 and plain formats.
constexpr std::int32_t code_value(WeightFormat::Codes codes, std::uint8_t code,
                                  std::int32_t zero_point) {
  constexpr std::int8_t fp4_halves[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  if (codes == WeightFormat::Codes::fp4) return code < 8 ? fp4_halves[code] : -fp4_halves[code - 8];
  return std::int32_t{code} - zero_point;
}
constexpr std::int32_t default_zero_point(WeightFormat::Codes codes) {
  switch (codes) {
    case WeightFormat::Codes::int4:
      return 8;
    case WeightFormat::Codes::int8:
      return 128;
    default:
      return 0;
  }
}

/// E4M3's byte as a float; NaN for 0x7f and 0xff.
constexpr float fp8_to_float(std::uint8_t byte) {
  const std::uint32_t sign = static_cast<std::uint32_t>(byte & 0x80U) << 24;
  const std::uint32_t exponent = (byte >> 3) & 0xfU;
  const std::uint32_t mantissa = byte & 0x7U;
  if ((byte & 0x7fU) == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  return sign != 0 ? -magnitude : magnitude;
}

/// A scale's bits as a float.
constexpr float scale_to_float(WeightFormat::Scales scales, std::uint32_t bits) {
  switch (scales) {
    case WeightFormat::Scales::f16:
      return half_to_float(static_cast<std::uint16_t>(bits));
    case WeightFormat::Scales::bf16:
      return std::bit_cast<float>(bits << 16);
    case WeightFormat::Scales::e8m0:
      if (bits == 255) return std::bit_cast<float>(0x7fc00000U);
      return std::bit_cast<float>(bits == 0 ? 0x00400000U : bits << 23);
    default:
      return std::bit_cast<float>(bits);
  }
}

/// The nearest scale of that type, ties to even; infinite where it is too large. Not for e8m0.
constexpr std::uint32_t to_scale(WeightFormat::Scales scales, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (scales == WeightFormat::Scales::bf16) return to_bf16(value).bits;
  if (scales != WeightFormat::Scales::f16) return bits;
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x47800000U) return sign | (magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U);
  if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 lets the FPU round it
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  return sign | ((magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13);
}

/// The nearest byte of E4M3, ties to even; what is beyond 448 becomes 448. NaN stays NaN.
constexpr std::uint8_t to_fp8(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude >= 0x43e00000U) return static_cast<std::uint8_t>(sign | 0x7eU);  // 448
  if (magnitude < 0x3c800000U) {  // below 2^-6: adding 2^14 lets the FPU round it
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xfU));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

}  // namespace sluice
