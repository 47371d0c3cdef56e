#include "models/quantized/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using testing::expect_error;

std::vector<float> normal_values(std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

CodedRows quantize(const char* format, std::int64_t in, const std::vector<float>& rows,
                   ScaleSearch search = ScaleSearch::none) {
  CodedRows coded;
  quantize_rows(parse_weight_format(format), in, rows, search, coded);
  return coded;
}

std::vector<float> values_of(const char* format, std::int64_t in, const CodedRows& coded) {
  std::vector<float> values(coded.codes.size());
  dequantize(parse_weight_format(format), in, coded, values);
  return values;
}

TEST(QuantizeRowsTest, MeetsTheLargestValueOfAnInt4Group) {
  std::vector<float> row(32, 0.0F);
  row[3] = 8.0F;   // scale -1: code 0 is 8
  row[4] = -8.0F;  // beyond the last code, 15, which is -7
  row[5] = 2.5F;   // ties to even
  row[6] = 3.5F;
  const CodedRows coded = quantize("int4-g32", 32, row);
  EXPECT_EQ(coded.scales, std::vector<std::uint32_t>{0xbc00});
  const auto values = values_of("int4-g32", 32, coded);
  EXPECT_EQ(coded.codes[3], 0);
  EXPECT_EQ(values[3], 8.0F);
  EXPECT_EQ(values[4], -7.0F);
  EXPECT_EQ(values[5], 2.0F);
  EXPECT_EQ(values[6], 4.0F);
  EXPECT_EQ(coded.codes[0], 8);
}

TEST(QuantizeRowsTest, MeetsBothEndsOfAGroupWithAZeroPoint) {
  std::vector<float> row(64, 0.0F);
  row[0] = -3.0F;
  row[1] = 12.0F;
  row[40] = 15.0F;  // a group of positive values begins at 0
  const CodedRows coded = quantize("int4-g32z", 64, row);
  EXPECT_EQ(coded.zero_points, (std::vector<std::uint8_t>{3, 0}));
  EXPECT_EQ(coded.scales, (std::vector<std::uint32_t>{0x3c00, 0x3c00}));
  EXPECT_EQ(values_of("int4-g32z", 64, coded), row);
}

TEST(QuantizeRowsTest, MeetsTheLargestValueOfAnInt8Row) {
  const std::vector<float> rows = {127.0F, -3.0F, 0.4F, -254.0F, 2.0F, 1.0F};
  const CodedRows coded = quantize("int8-g0", 3, rows);
  EXPECT_EQ(coded.scales, (std::vector<std::uint32_t>{0x3c00, 0x4000}));
  EXPECT_EQ(coded.codes, (std::vector<std::uint8_t>{255, 125, 128, 1, 129, 128}));
}

TEST(QuantizeRowsTest, GivesABlockOneScale) {
  std::vector<float> rows(130 * 130, 1.0F);
  rows[0] = 448.0F;                             // of the first block
  rows[129 * std::size_t{130} + 129] = 896.0F;  // of the last one, 2 x 2
  const CodedRows coded = quantize("fp8-b128", 130, rows);
  const auto scale = [&](std::size_t row, std::size_t group) {
    return std::bit_cast<float>(coded.scales[row * 2 + group]);
  };
  EXPECT_EQ(scale(127, 0), 1.0F);
  EXPECT_EQ(scale(127, 1), 1.0F / 448.0F);
  EXPECT_EQ(scale(128, 1), 2.0F);
  EXPECT_EQ(scale(129, 1), 2.0F);
  EXPECT_EQ(values_of("fp8-b128", 130, coded)[128 * 130 + 128], 1.0F);
}

TEST(QuantizeRowsTest, GivesZerosToGroupsOfZerosAndOfValuesTooSmallForAScale) {
  for (const float value : {0.0F, -0.0F, 1e-30F, -1e-9F}) {
    for (const char* format : {"int4-g32", "int4-g32z", "int8-g0", "int8-g32z"}) {
      const auto values =
          values_of(format, 32, quantize(format, 32, std::vector(32, value), ScaleSearch::mse));
      EXPECT_EQ(values, std::vector(32, 0.0F)) << format << " " << value;
    }
  }
}

TEST(QuantizeRowsTest, TakesCodesWithTheScaleThatIsStored) {
  // 2^-25 * 1.5 becomes the least half, 2^-24, so that the largest value is -5.33 of them.
  std::vector<float> row(32, 0.0F);
  row[0] = -0x1.8p-25F * 8;
  const CodedRows coded = quantize("int4-g32", 32, row);
  EXPECT_EQ(coded.scales, std::vector<std::uint32_t>{1});
  EXPECT_EQ(coded.codes[0], 8 - 6);
}

TEST(QuantizeRowsTest, DoesRowsApart) {
  const auto rows = normal_values(5 * 96);
  const CodedRows all = quantize("int4-g32z", 96, rows, ScaleSearch::mse);
  CodedRows alone;
  quantize_rows(parse_weight_format("int4-g32z"), 96, std::span(rows).subspan(3 * 96, 96),
                ScaleSearch::mse, alone);
  EXPECT_TRUE(std::equal(alone.codes.begin(), alone.codes.end(), all.codes.begin() + 3 * 96));
  EXPECT_TRUE(std::equal(alone.scales.begin(), alone.scales.end(), all.scales.begin() + 3 * 3));
  EXPECT_TRUE(std::equal(alone.zero_points.begin(), alone.zero_points.end(),
                         all.zero_points.begin() + 3 * 3));
}

class ScaleSearchTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ScaleSearchTest, IsNeverWorseInAnyGroupAndBetterInSome) {
  const WeightFormat format = parse_weight_format(GetParam());
  const std::int64_t in = 256;
  const std::int64_t step = format.group == 0 ? in : format.group;
  const auto rows = normal_values(128 * static_cast<std::size_t>(in));
  std::int64_t better = 0;
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(rows.size());
       first += format.group_rows != 1 ? in * 128 : step) {
    const std::int64_t width = format.group_rows != 1 ? in : step;
    const auto group = std::span(rows).subspan(static_cast<std::size_t>(first),
                                               static_cast<std::size_t>(width * format.group_rows));
    CodedRows plain;
    CodedRows searched;
    quantize_rows(format, width, group, ScaleSearch::none, plain);
    quantize_rows(format, width, group, ScaleSearch::mse, searched);
    const double before = squared_error(format, width, group, plain);
    const double after = squared_error(format, width, group, searched);
    EXPECT_LE(after, before) << first;
    better += after < before ? 1 : 0;
  }
  EXPECT_GT(better, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ScaleSearchTest,
                         ::testing::Values("int4-g32", "int4-g64z", "int4-g128", "int4-g0",
                                           "int8-g32", "int8-g128z", "int8-g0", "fp8-row",
                                           "fp8-b128"));

TEST(ScaleSearchTest, LowersTheErrorOfInt4ByAFewPercent) {
  const auto rows = normal_values(1 << 16);
  const auto error = [&](const char* format, ScaleSearch search) {
    const CodedRows coded = quantize(format, 256, rows, search);
    double squares = 0;
    for (const float value : rows) squares += double{value} * double{value};
    return std::sqrt(squared_error(parse_weight_format(format), 256, rows, coded) / squares);
  };
  // What an independent program finds with other draws of the same distribution.
  const double before = error("int4-g32", ScaleSearch::none);
  EXPECT_NEAR(before, 0.0861, 0.0013);
  EXPECT_NEAR(error("int4-g32", ScaleSearch::mse) / before, 0.945, 0.003);
  EXPECT_NEAR(error("int4-g128", ScaleSearch::mse) / error("int4-g128", ScaleSearch::none), 0.938,
              0.004);
}

TEST(QuantizeRowsErrorsTest, NameTheRowAndTheInput) {
  std::vector<float> rows(64, 1.0F);
  CodedRows coded;
  const auto refused = [&](float value, std::string_view text) {
    rows[37] = value;
    expect_error(
        [&] {
          quantize_rows(parse_weight_format("int4-g32"), 32, rows, ScaleSearch::none, coded, 100);
        },
        {"row 101, input 5 is ", text});
  };
  refused(std::numeric_limits<float>::quiet_NaN(), "nan, expected a finite number");
  refused(-std::numeric_limits<float>::infinity(), "-inf");
}

TEST(QuantizeRowsErrorsTest, NameAScaleThatItsTypeCannotHold) {
  expect_error([] { quantize("int4-g32", 64, std::vector(128, 1e6F)); },
               {"row 0, group 0", "type f16"});
}

TEST(QuantizeRowsErrorsTest, NameFormatsThatCannotBeMade) {
  expect_error([] { quantize("mxfp4", 32, std::vector(32, 1.0F)); }, {"mxfp4", "int4-gN"});
  expect_error([] { quantize("bf16", 32, std::vector(32, 1.0F)); }, {"bf16"});
}

/// The nearest of all codes, by trying them.
TEST(ToFp8Test, TakesTheNearestCode) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const float value =
        std::ldexp(static_cast<float>(random()) * 0x1p-32F, static_cast<int>(random() % 24) - 14);
    const float found = fp8_to_float(to_fp8(value));
    float nearest = 448.0F;
    for (int code = 0; code < 127; ++code) {
      const float candidate = fp8_to_float(static_cast<std::uint8_t>(code));
      if (std::abs(candidate - value) < std::abs(nearest - value)) nearest = candidate;
    }
    EXPECT_EQ(std::abs(found - value), std::abs(nearest - value)) << value;
    EXPECT_EQ(to_fp8(-value), to_fp8(value) | 0x80) << value;
  }
}

TEST(ToFp8Test, KeepsEveryCodeAndTakesTiesToEven) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(to_fp8(fp8_to_float(static_cast<std::uint8_t>(code))), code);
  }
  EXPECT_EQ(to_fp8(0x1p-10F), 0);         // half of the least
  EXPECT_EQ(to_fp8(0x3p-10F), 2);         // between 1 and 2
  EXPECT_EQ(to_fp8(1.0625F), to_fp8(1));  // between 1 and 1.125
  EXPECT_EQ(to_fp8(1e30F), 0x7e);
  EXPECT_EQ(to_fp8(-INFINITY), 0xfe);
  EXPECT_EQ(to_fp8(NAN) & 0x7f, 0x7f);
}

TEST(ToScaleTest, RoundsToHalvesAsTheyAreRead) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_scale(WeightFormat::Scales::f16, value), bits);
    if (bits + 1 >= 0x7c00) continue;
    const float next = half_to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(to_scale(WeightFormat::Scales::f16, middle), bits + (bits & 1U));
    ASSERT_EQ(to_scale(WeightFormat::Scales::f16, std::nextafter(middle, next)), bits + 1);
    ASSERT_EQ(to_scale(WeightFormat::Scales::f16, std::nextafter(middle, value)), bits);
  }
  EXPECT_EQ(to_scale(WeightFormat::Scales::f16, 65519.99F), 0x7bffU);
  EXPECT_EQ(to_scale(WeightFormat::Scales::f16, 65520.0F), 0x7c00U);
  EXPECT_EQ(to_scale(WeightFormat::Scales::f16, -1e30F), 0xfc00U);
}

}  // namespace
}  // namespace sluice
