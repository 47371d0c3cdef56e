// Conversions between float, bfloat16 and half, over every 16-bit pattern.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

TEST(DTypeTest, NamesAndSizes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(to_string(DType::bf16), "bf16");
  EXPECT_EQ(parse_dtype("fp32"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_dtype("F32"), std::nullopt);
  EXPECT_EQ(size_bytes(DType::f32), 4U);
  EXPECT_EQ(size_bytes(DType::bf16), 2U);
  EXPECT_EQ(size_bytes(DType::f16), 2U);
}

TEST(HalfTest, EveryPatternIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 10) & 0x1f;
    const double mantissa = bits & 0x3ff;
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else if (exponent == 31) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(static_cast<double>(value), sign * expected) << bits;
    }
  }
}

TEST(HalfTest, HandMadeValues) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0F);
  EXPECT_EQ(half_to_float(0xc000), -2.0F);
  EXPECT_EQ(half_to_float(0x3555), 0.333251953125F);
  EXPECT_EQ(half_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(half_to_float(0x03ff), 1023 * 0x1p-24F);
  EXPECT_EQ(half_to_float(0x0400), 0x1p-14F);
}

/// The value of a finite pattern; the one above the largest finite counts as 2^128 here.
double bf16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 7) & 0xff;
  const double mantissa = bits & 0x7f;
  return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}

TEST(BFloat16Test, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 bf16{static_cast<std::uint16_t>(bits)};
    const float value = to_float(bf16);
    if ((bits & 0x7fff) > 0x7f80) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(to_bf16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(to_bf16(value).bits, bits);
    if ((bits & 0x7fff) < 0x7f80) {
      ASSERT_EQ(std::abs(static_cast<double>(value)), bf16_value(bits & 0x7fff)) << bits;
    }
  }
}

TEST(BFloat16Test, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const double low = bf16_value(bits);
    const double high = bf16_value(bits + 1);
    for (const std::uint32_t below : {0x0000, 0x0001, 0x4321, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      const auto value = std::bit_cast<float>((bits << 16) + below);
      const double to_low = static_cast<double>(value) - low;
      const double to_high = high - static_cast<double>(value);
      const bool up = to_low > to_high || (to_low == to_high && bits % 2 == 1);
      const std::uint32_t expected = up ? bits + 1 : bits;
      ASSERT_EQ(to_bf16(value).bits, expected) << bits << " and " << below;
      ASSERT_EQ(to_bf16(-value).bits, expected | 0x8000U) << bits << " and " << below;
    }
  }
}

TEST(BFloat16Test, InfinityStaysAndNanStaysNan) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  for (const std::uint32_t bits :
       {0x7f800001U, 0x7f80ffffU, 0x7fffffffU, 0xff800001U, 0xffffffffU, 0x7fc00000U}) {
    const float nan = to_float(to_bf16(std::bit_cast<float>(bits)));
    EXPECT_TRUE(std::isnan(nan)) << bits;
    EXPECT_EQ(std::signbit(nan), (bits >> 31) != 0) << bits;
  }
}

TEST(BFloat16Test, IsKnownWhenCompiling) {
  static_assert(to_bf16(1.0F).bits == 0x3f80);
  static_assert(to_float(BFloat16{0xc040}) == -3.0F);
  static_assert(half_to_float(0x4200) == 3.0F);
}

}  // namespace
}  // namespace sluice
