// Formats of weights: names, sizes, and what codes and scales are worth.
#include "base/weight_format.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <type_traits>

#include "base/error.h"

namespace sluice {
namespace {

using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

TEST(WeightFormatTest, NamesComeBack) {
  for (const char* name : {"f32", "bf16", "int4-g32", "int4-g64z", "int4-g128", "int8-g0",
                           "int8-g32", "int8-g128z", "mxfp4", "fp8-b128", "fp8-row"}) {
    EXPECT_EQ(to_string(parse_weight_format(name)), name);
  }
  EXPECT_EQ(parse_weight_format("f32"), WeightFormat::plain(DType::f32));
  EXPECT_EQ(parse_weight_format("bf16"), WeightFormat::plain(DType::bf16));
  EXPECT_TRUE(std::has_unique_object_representations_v<WeightFormat>);
}

TEST(WeightFormatTest, OtherTextsAreRefusedInOneLine) {
  for (const char* text : {"", "int4", "int4-g", "int4-g48", "int4-g-32", "int4-g032", "int4-g32zz",
                           "int2-g32", "int3-g32", "q4_0", "fp8", "mxfp8", "INT4-G32", "int4-gz"}) {
    try {
      parse_weight_format(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("int4-gN"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(WeightFormatTest, GroupsMayEndEarly) {
  EXPECT_EQ(parse_weight_format("int4-g32").num_groups(64), 2);
  EXPECT_EQ(parse_weight_format("fp8-b128").num_groups(129), 2);
  EXPECT_EQ(parse_weight_format("int8-g0").num_groups(4096), 1);
  EXPECT_EQ(parse_weight_format("bf16").num_groups(4096), 0);
}

/// OCP Microscaling Formats (MX) 1.0, table of E2M1's values.
TEST(WeightFormatTest, Fp4IsTwiceE2m1) {
  const std::array<double, 8> values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 16; ++code) {
    const double expected = 2 * values.at(code % 8) * (code < 8 ? 1 : -1);
    EXPECT_EQ(code_value(Codes::fp4, code, 0), expected) << int{code};
  }
}

TEST(WeightFormatTest, Fp8IsE4m3) {
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = byte >> 3 & 15;
    const int mantissa = byte & 7;
    const float value = fp8_to_float(static_cast<std::uint8_t>(byte));
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value)) << byte;
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(static_cast<double>(value), byte < 128 ? magnitude : -magnitude) << byte;
    EXPECT_EQ(std::signbit(value), byte >= 128) << byte;
  }
}

TEST(WeightFormatTest, ScalesAreFloats) {
  EXPECT_EQ(scale_to_float(Scales::f16, 0x3c00), 1.0F);
  EXPECT_EQ(scale_to_float(Scales::f16, 0x0001), 0x1p-24F);
  EXPECT_EQ(scale_to_float(Scales::bf16, 0x3f80), 1.0F);
  EXPECT_EQ(scale_to_float(Scales::f32, 0x3fc00000), 1.5F);
  for (std::uint32_t byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(static_cast<double>(scale_to_float(Scales::e8m0, byte)),
              std::ldexp(1.0, static_cast<int>(byte) - 127))
        << byte;
  }
  EXPECT_TRUE(std::isnan(scale_to_float(Scales::e8m0, 255)));
}

}  // namespace
}  // namespace sluice
