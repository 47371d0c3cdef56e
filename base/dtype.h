#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace sluice {

/// Element types of weights, activations and KV.
enum class DType : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
  }
  return "?";
}

/// "f32", "bf16" or "f16"; nothing for any other text.
constexpr std::optional<DType> parse_dtype(std::string_view text) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (text == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

/// A bfloat16 as its bits; arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits = 0;
};

/// Rounds to nearest even; NaN stays NaN.
constexpr BFloat16 to_bf16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  bits += 0x7fffU + ((bits >> 16) & 1U);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

constexpr float to_float(float value) { return value; }

/// An IEEE half as its bits, exact in float (subnormals, infinities and NaN included).
constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace sluice
