// Quantised weights' strips, digits and products, against double precision.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/memory.h"
#include "codelets/kernels/quantized/digits.h"
#include "codelets/kernels/quantized/gemm.h"
#include "codelets/kernels/quantized/gemm_f32.h"
#include "codelets/kernels/quantized/gemm_fp8.h"
#include "codelets/kernels/quantized/plain_kernel.h"
#include "codelets/kernels/quantized/strip.h"
#include "tests/codelets/bf16_arithmetic_test.h"
#include "tests/codelets/codelet_data.h"

namespace sluice {
namespace {

using quantized::Arithmetic;
using quantized::DigitLayout;
using quantized::DigitOrder;
using quantized::StripLayout;
using test::Random;
using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

WeightFormat format_of(const std::string& name, Scales scales) {
  WeightFormat format = parse_weight_format(name);
  format.scales = scales;
  return format;
}

/// Each kind of codes, group, scales and zero points.
std::vector<WeightFormat> digit_formats() {
  std::vector<WeightFormat> formats;
  for (const char* codes : {"int4", "int8"}) {
    for (const int group : {0, 32, 64, 128}) {
      for (const char* zero_points : {"", "z"}) {
        const std::string name = fmt::format("{}-g{}{}", codes, group, zero_points);
        for (const Scales scales : {Scales::f16, Scales::bf16, Scales::f32, Scales::e8m0}) {
          formats.push_back(format_of(name, scales));
        }
      }
    }
  }
  for (const int group : {0, 32, 64, 128}) {
    for (const Scales scales : {Scales::e8m0, Scales::f16}) {
      formats.push_back(
          {.codes = Codes::fp4, .scales = scales, .group = static_cast<std::uint16_t>(group)});
    }
  }
  return formats;
}

/// And what has no digits.
std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> formats = digit_formats();
  for (const char* name : {"fp8-b128", "fp8-row"}) formats.push_back(parse_weight_format(name));
  return formats;
}

std::string name_of(const WeightFormat& format) {
  constexpr const char* scales[] = {"none", "f16", "bf16", "f32", "e8m0"};
  std::string name = fmt::format("{}_g{}_{}", to_string(format), format.group,
                                 scales[static_cast<int>(format.scales)]);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// A scale about 2^-8, now and then 0 or subnormal.
std::uint32_t random_scale(Random& random, Scales scales) {
  const std::int64_t kind = random.below(24);
  const auto mantissa = static_cast<std::uint32_t>(random.bits());
  switch (scales) {
    case Scales::f16:
      return kind == 0 ? 0 : kind == 1 ? mantissa & 0x3ffU : 0x1c00U | (mantissa & 0x83ffU);
    case Scales::bf16:
      return kind == 0 ? 0 : kind == 1 ? mantissa & 0x7fU : 0x3b80U | (mantissa & 0x807fU);
    case Scales::e8m0:
      return kind == 0 ? 0 : kind == 1 ? 1 : 117 + mantissa % 4;
    default:
      return kind == 0   ? 0
             : kind == 1 ? mantissa & 0x7fffffU
                         : 0x3b800000U | (mantissa & 0x807fffffU);
  }
}

/// A weight [64 strips - some, in] in a format: codes, and packed.
struct CodedWeight {
  CodedWeight(Random& random, const WeightFormat& the_format, std::int64_t num_columns,
              std::int64_t the_in)
      : format(the_format),
        columns(num_columns),
        in(the_in),
        strips((columns + strip_columns - 1) / strip_columns),
        packed(static_cast<std::size_t>(strips) * quantized::strip_bytes(format, in)) {
    const std::int64_t groups = format.num_groups(in);
    const std::uint8_t largest = format.bits_per_code() == 4 ? 15 : 255;
    for (std::int64_t i = 0; i < columns * in; ++i) {
      // Of some columns the extremes only.
      const std::int64_t column = i / in;
      const auto bits = static_cast<std::uint8_t>(random.bits());
      const auto code = static_cast<std::uint8_t>(bits & largest);
      codes.push_back(column % 16 == 3 ? largest : column % 16 == 4 ? std::uint8_t{0} : code);
      const bool is_number = format.codes != Codes::fp8 || (codes.back() & 0x7f) != 0x7f;
      if (!is_number) codes.back() ^= 1;
    }
    for (std::int64_t i = 0; i < columns * groups; ++i) {
      scales.push_back(random_scale(random, format.scales));
      const auto zero = static_cast<std::uint8_t>(random.bits() & largest);
      zero_points.push_back(i % 7 == 0 ? std::uint8_t{0} : i % 7 == 1 ? largest : zero);
    }
    pack();
  }
  /// Again, of what codes, scales and zero points are now.
  void pack() {
    const std::int64_t groups = format.num_groups(in);
    std::memset(packed.data(), 0x5a, packed.size());
    for (std::int64_t strip = 0; strip < strips; ++strip) {
      const std::int64_t first = strip * strip_columns;
      quantized::pack_strip(
          format,
          {.codes = codes.data() + first * in,
           .scales = scales.data() + first * groups,
           .zero_points = format.has_zero_points ? zero_points.data() + first * groups : nullptr},
          std::min(strip_columns, columns - first), in, strip_at(strip));
    }
  }
  std::byte* strip_at(std::int64_t strip) const {
    return packed.data() + static_cast<std::size_t>(strip) * quantized::strip_bytes(format, in);
  }
  float value(std::int64_t column, std::int64_t i) const {
    const std::int64_t group =
        column * format.num_groups(in) + (format.group == 0 ? 0 : i / format.group);
    const float scale = scale_to_float(format.scales, scales[static_cast<std::size_t>(group)]);
    const std::uint8_t code = codes[static_cast<std::size_t>(column * in + i)];
    if (format.codes == Codes::fp8) return fp8_to_float(code) * scale;
    const std::int32_t zero = format.has_zero_points ? zero_points[static_cast<std::size_t>(group)]
                                                     : default_zero_point(format.codes);
    const auto number = static_cast<float>(code_value(format.codes, code, zero));
    return format.codes == Codes::fp4 ? number / 2 * scale : number * scale;
  }
  std::int64_t padded_columns() const { return strips * strip_columns; }

  WeightFormat format;
  std::int64_t columns, in, strips;
  Buffer packed;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint32_t> scales;
  std::vector<std::uint8_t> zero_points;
};

/// Rows of x, as digits in either order.
struct Input {
  Input(std::vector<float> values, std::int64_t num_rows, DType dtype)
      : rows(num_rows), x(test::make_operand(std::move(values), dtype)) {}
  Buffer digits(const WeightFormat& format, std::int64_t in, DigitOrder order) const {
    const DigitLayout layout(format, in, order);
    Buffer result(static_cast<std::size_t>(rows * layout.row_bytes()));
    std::memset(result.data(), 0x5a, result.size());
    make_digits(layout, {.dtype = x.dtype, .x = x.data(), .rows = rows, .stride = in},
                result.data());
    return result;
  }
  std::int64_t rows;
  test::Operand x;
};

/// An arithmetic; or no vectors at all.
struct Way {
  Arithmetic arithmetic = Arithmetic::portable;
  bool is_plain = false;
};
std::string name_of(const Way& way) {
  if (way.is_plain) return "Plain";
  constexpr const char* names[] = {"Portable", "Vnni", "Amx"};
  return names[static_cast<int>(way.arithmetic)];
}
std::vector<Way> ways() {
  std::vector<Way> result = {{.is_plain = true}, {}};
  for (const Arithmetic arithmetic : {Arithmetic::vnni, Arithmetic::amx}) {
    if (quantized::has_arithmetic(arithmetic)) result.push_back({arithmetic});
  }
  return result;
}

/// C [rows, padded columns], which is 0.25 before where it is continued.
std::vector<float> multiply(const CodedWeight& w, const Input& x, const Way& way,
                            StripSource source = StripSource::cache, bool accumulate = false) {
  const Buffer digits = x.digits(w.format, w.in, quantized::digit_order(way.arithmetic));
  std::vector<float> c(static_cast<std::size_t>(x.rows * w.padded_columns()), 0.25F);
  const quantized::Gemm call{.format = w.format,
                             .rows = x.rows,
                             .in = w.in,
                             .digits = digits.data(),
                             .w = w.packed.data(),
                             .strips = w.strips,
                             .c = c.data(),
                             .c_stride = w.padded_columns(),
                             .accumulate = accumulate,
                             .source = source,
                             .arithmetic = way.arithmetic};
  if (way.is_plain) {
    quantized::Multiplication<quantized::PlainKernel>(call).run();
  } else {
    quantized::gemm(call);
  }
  return c;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), 4 * values.size());
  return bits;
}

/// Results lie within what rounding x allows of double precision: 2^-15 of a block's largest for
/// each input, and a last place of each partial sum.
void expect_close(const CodedWeight& w, const Input& x, const std::vector<float>& c,
                  double before) {
  const StripLayout layout(w.format, w.in);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const float* row = x.x.values.data() + r * w.in;
    for (std::int64_t j = 0; j < w.columns; ++j) {
      double sum = before;
      double allowed = 1e-37;
      double largest_sum = std::abs(before);
      for (std::int64_t first = 0; first < w.in; first += layout.block()) {
        double largest = 0;
        double weight = 0;
        for (std::int64_t i = first; i < std::min(w.in, first + layout.block()); ++i) {
          const auto value = static_cast<double>(w.value(j, i));
          largest = std::max(largest, static_cast<double>(std::abs(row[i])));
          weight += std::abs(value);
          sum += static_cast<double>(row[i]) * value;
        }
        allowed += weight * largest * 0x1p-15;
        largest_sum = std::max(largest_sum, std::abs(sum));
      }
      allowed += largest_sum * 0x1p-23 * static_cast<double>(layout.num_blocks());
      const auto result =
          static_cast<double>(c[static_cast<std::size_t>(r * w.padded_columns() + j)]);
      ASSERT_NEAR(result, sum, allowed) << "row " << r << ", column " << j;
    }
  }
}

class QuantizedFormatTest : public ::testing::TestWithParam<WeightFormat> {
 public:
  static std::string name(const ::testing::TestParamInfo<WeightFormat>& info) {
    return name_of(info.param);
  }

 protected:
  Random random_{44};
};
INSTANTIATE_TEST_SUITE_P(Each, QuantizedFormatTest, ::testing::ValuesIn(all_formats()),
                         QuantizedFormatTest::name);
/// What digits multiply.
class QuantizedDigitsTest : public QuantizedFormatTest {};
INSTANTIATE_TEST_SUITE_P(Each, QuantizedDigitsTest, ::testing::ValuesIn(digit_formats()),
                         QuantizedFormatTest::name);

TEST_P(QuantizedFormatTest, UnpacksWhatWasPacked) {
  for (const std::int64_t in : {1, 7, 32, 97, 300}) {
    for (const std::int64_t columns : {1, 17, 64}) {
      const CodedWeight w(random_, GetParam(), columns, in);
      std::vector<std::uint8_t> codes(w.codes.size());
      std::vector<std::uint32_t> scales(w.scales.size());
      std::vector<std::uint8_t> zeros(w.zero_points.size());
      quantized::unpack_codes(w.format, w.packed.data(), columns, in,
                              {codes.data(), scales.data(), zeros.data()});
      EXPECT_EQ(codes, w.codes);
      EXPECT_EQ(scales, w.scales);
      if (w.format.has_zero_points) {
        EXPECT_EQ(zeros, w.zero_points);
      }
      std::vector<float> values(w.codes.size());
      quantized::unpack_strip(w.format, w.packed.data(), columns, in, values.data());
      std::vector<float> expected;
      for (std::int64_t i = 0; i < columns * in; ++i) expected.push_back(w.value(i / in, i % in));
      EXPECT_EQ(bits_of(values), bits_of(expected));
    }
  }
}

TEST_P(QuantizedDigitsTest, MatchesDoublePrecisionOnEveryArithmetic) {
  struct Shape {
    std::int64_t rows, columns, in;
  };
  for (const auto& [rows, columns, in] :
       {Shape{1, 64, 32}, Shape{1, 130, 1000}, Shape{2, 65, 256}, Shape{3, 64, 97},
        Shape{7, 70, 288}, Shape{8, 64, 1}, Shape{16, 64, 544}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << columns << " columns, depth " << in);
    const CodedWeight w(random_, GetParam(), columns, in);
    const DType dtype = rows % 2 == 0 ? DType::f32 : DType::bf16;
    const Input x(random_.floats(rows * in, 3.0), rows, dtype);
    for (const bool accumulate : {false, true}) {
      std::vector<std::uint32_t> first;
      for (const Way& way : ways()) {
        SCOPED_TRACE(name_of(way));
        const auto source = rows % 3 == 0 ? StripSource::cache : StripSource::memory;
        const std::vector<float> c = multiply(w, x, way, source, accumulate);
        if (first.empty()) {
          first = bits_of(c);
          expect_close(w, x, c, accumulate ? 0.25 : 0.0);
        } else {
          EXPECT_EQ(bits_of(c), first);
        }
      }
    }
  }
}

TEST_P(QuantizedDigitsTest, RowsAreAlone) {
  constexpr std::int64_t in = 416;
  for (const std::int64_t rows : {2, 5, 13, 64}) {
    const CodedWeight w(random_, GetParam(), 128, in);
    const Input x(random_.floats(rows * in, 3.0), rows, DType::f32);
    const std::int64_t columns = w.padded_columns();
    for (const Way& way : ways()) {
      SCOPED_TRACE(name_of(way));
      const std::vector<float> together = multiply(w, x, way, StripSource::memory);
      for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
        const auto begin = x.x.values.begin() + row * in;
        const Input one(std::vector<float>(begin, begin + in), 1, DType::f32);
        const std::vector<float> alone = multiply(w, one, way);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * columns))
            << "row " << row << " of " << rows;
      }
    }
  }
}

/// C [rows, padded columns] in f32 arithmetic.
std::vector<float> multiply_in_f32(const CodedWeight& w, const std::vector<float>& x,
                                   std::int64_t rows, bool accumulate) {
  std::vector<float> c(static_cast<std::size_t>(rows * w.padded_columns()), 0.25F);
  quantized::gemm_f32({.format = w.format,
                       .rows = rows,
                       .in = w.in,
                       .x = x.data(),
                       .x_stride = w.in,
                       .w = w.packed.data(),
                       .strips = w.strips,
                       .c = c.data(),
                       .c_stride = w.padded_columns(),
                       .accumulate = accumulate});
  return c;
}

TEST_P(QuantizedFormatTest, F32MatchesDoublePrecisionAndRowsAreAlone) {
  struct Shape {
    std::int64_t rows, columns, in;
  };
  for (const auto& [rows, columns, in] : {Shape{1, 70, 1000}, Shape{2, 64, 97}, Shape{3, 130, 32},
                                          Shape{7, 64, 544}, Shape{30, 64, 1}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << columns << " columns, depth " << in);
    const CodedWeight w(random_, GetParam(), columns, in);
    const std::vector<float> x = random_.floats(rows * in, 3.0);
    for (const bool accumulate : {false, true}) {
      const std::vector<float> c = multiply_in_f32(w, x, rows, accumulate);
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::int64_t row = i / columns;
        const std::int64_t column = i % columns;
        double sum = accumulate ? 0.25 : 0;
        double size = sum;
        for (std::int64_t k = 0; k < in; ++k) {
          const double product = static_cast<double>(x[static_cast<std::size_t>(row * in + k)]) *
                                 static_cast<double>(w.value(column, k));
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(c[static_cast<std::size_t>(row * w.padded_columns() + column)], sum,
                    4e-7 * size + 1e-37)
            << "row " << row << ", column " << column;
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<float> alone = multiply_in_f32(
            w, std::vector<float>(x.begin() + row * in, x.begin() + (row + 1) * in), 1, accumulate);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), c.begin() + row * w.padded_columns()));
      }
    }
  }
}

class QuantizedFp8Test : public test::Bf16ArithmeticTest {};
INSTANTIATE_TEST_SUITE_P(Each, QuantizedFp8Test, test::Bf16ArithmeticTest::all(),
                         QuantizedFp8Test::name);

TEST_P(QuantizedFp8Test, MatchesDoublePrecisionAndRowsAreAlone) {
  for (const char* name : {"fp8-b128", "fp8-row"}) {
    for (const std::int64_t in : {1, 96, 301, 512}) {
      for (const std::int64_t rows : {1, 4, 19}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << rows << " rows, depth " << in);
        const CodedWeight w(random_, parse_weight_format(name), 100, in);
        const test::Numbers x(random_, rows * in);
        const auto multiply = [&](std::int64_t first, std::int64_t count) {
          std::vector<float> c(static_cast<std::size_t>(count * w.padded_columns()), 0.25F);
          quantized::gemm_fp8({.format = w.format,
                               .rows = count,
                               .in = in,
                               .x = x.bits.data() + first * in,
                               .x_stride = in,
                               .w = w.packed.data(),
                               .strips = w.strips,
                               .c = c.data(),
                               .c_stride = w.padded_columns(),
                               .accumulate = true,
                               .arithmetic = GetParam()});
          return c;
        };
        const std::vector<float> c = multiply(0, rows);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t column = 0; column < w.columns; ++column) {
            double sum = 0.25;
            double size = 0.25;
            for (std::int64_t i = 0; i < in; ++i) {
              const double product =
                  static_cast<double>(x.values[static_cast<std::size_t>(row * in + i)]) *
                  static_cast<double>(w.value(column, i));
              sum += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(c[static_cast<std::size_t>(row * w.padded_columns() + column)], sum,
                        1e-6 * size)
                << "row " << row << ", column " << column;
          }
          const std::vector<float> alone = multiply(row, 1);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), c.begin() + row * w.padded_columns()));
        }
      }
    }
  }
}

/// Each code as the specification has it, NaN included: by rows of one.
TEST_P(QuantizedFp8Test, EveryCodeIsItsValue) {
  const WeightFormat format = parse_weight_format("fp8-row");
  constexpr std::uint16_t one = 0x3f80;
  const std::uint32_t scale = std::bit_cast<std::uint32_t>(1.0F);
  for (std::int64_t first = 0; first < 256; first += strip_columns) {
    std::vector<std::uint8_t> codes;
    for (std::int64_t i = 0; i < strip_columns; ++i)
      codes.push_back(static_cast<std::uint8_t>(first + i));
    const std::vector<std::uint32_t> scales(strip_columns, scale);
    const Buffer strip(quantized::strip_bytes(format, 1));
    quantized::pack_strip(format, {codes.data(), scales.data()}, strip_columns, 1, strip.data());
    std::vector<float> in_bf16(strip_columns);
    quantized::gemm_fp8({.format = format,
                         .rows = 1,
                         .in = 1,
                         .x = &one,
                         .x_stride = 1,
                         .w = strip.data(),
                         .c = in_bf16.data(),
                         .c_stride = strip_columns,
                         .arithmetic = GetParam()});
    std::vector<float> in_f32(strip_columns);
    const float one_in_f32 = 1;
    quantized::gemm_f32({.format = format,
                         .rows = 1,
                         .in = 1,
                         .x = &one_in_f32,
                         .x_stride = 1,
                         .w = strip.data(),
                         .c = in_f32.data(),
                         .c_stride = strip_columns});
    for (std::size_t i = 0; i < strip_columns; ++i) {
      const float expected = fp8_to_float(codes[i]);
      EXPECT_EQ(std::isnan(in_bf16[i]), std::isnan(expected)) << +codes[i];
      EXPECT_EQ(std::isnan(in_f32[i]), std::isnan(expected)) << +codes[i];
      if (std::isnan(expected)) continue;
      EXPECT_EQ(in_bf16[i], expected) << +codes[i];
      EXPECT_EQ(in_f32[i], expected) << +codes[i];
    }
  }
}

class QuantizedGemmTest : public ::testing::Test {
 protected:
  Random random_{45};
};

/// Sums that a block's largest codes and numbers make: they fit into 32 bits, whatever the depth.
TEST_F(QuantizedGemmTest, LargestSumsFit) {
  for (const char* name : {"int8-g0", "int8-g128z", "int4-g0z", "int8-g0z"}) {
    for (const std::int64_t in : {128, 8192}) {
      const WeightFormat format = format_of(name, Scales::f32);
      CodedWeight w(random_, format, 64, in);
      std::fill(w.codes.begin(), w.codes.end(), format.bits_per_code() == 4 ? 15 : 255);
      std::fill(w.scales.begin(), w.scales.end(), std::bit_cast<std::uint32_t>(1.0F));
      std::fill(w.zero_points.begin(), w.zero_points.end(), 0);
      w.pack();
      std::vector<float> values(static_cast<std::size_t>(2 * in), 32639.0F);
      std::fill(values.begin() + in, values.end(), -32639.0F);
      const Input x(values, 2, DType::f32);
      for (const Way& way : ways()) {
        SCOPED_TRACE(name_of(way));
        expect_close(w, x, multiply(w, x, way), 0);
      }
    }
  }
}

TEST_F(QuantizedGemmTest, LongRowsAndManyRows) {
  for (const char* name : {"int4-g32", "int8-g0", "int4-g128z"}) {
    for (const std::int64_t rows : {1, 300}) {
      const std::int64_t in = rows == 1 ? 8192 : 640;
      const CodedWeight w(random_, format_of(name, Scales::f16), 128, in);
      const Input x(random_.floats(rows * in, 3.0), rows, DType::bf16);
      std::vector<std::uint32_t> first;
      for (const Way& way : ways()) {
        SCOPED_TRACE(name_of(way));
        const std::vector<float> c = multiply(w, x, way, StripSource::memory);
        if (first.empty()) {
          first = bits_of(c);
          expect_close(w, x, c, 0);
        }
        EXPECT_EQ(bits_of(c), first);
      }
    }
  }
}

/// Products of scales that are normal numbers, and such that become subnormal or infinite.
TEST_F(QuantizedGemmTest, ScalesOfAnySizeGiveTheSameBits) {
  constexpr std::int64_t in = 160;
  constexpr std::int64_t rows = 7;
  for (const Scales scales : {Scales::f16, Scales::bf16, Scales::f32, Scales::e8m0}) {
    CodedWeight w(random_, format_of("int4-g32", scales), 64, in);
    for (const int exponent : {-126, -100, -20, 0, 20, 100, 126}) {
      for (std::uint32_t& scale : w.scales) {
        const auto mantissa = static_cast<std::uint32_t>(random_.bits());
        const auto biased = static_cast<std::uint32_t>(127 + exponent);
        switch (scales) {
          case Scales::f16:
            scale = static_cast<std::uint32_t>(15 + std::clamp(exponent, -14, 15)) << 10 |
                    (mantissa & 0x83ffU);
            break;
          case Scales::bf16:
            scale = biased << 7 | (mantissa & 0x807fU);
            break;
          case Scales::e8m0:
            scale = biased;
            break;
          default:
            scale = biased << 23 | (mantissa & 0x807fffffU);
        }
      }
      w.pack();
      for (const int of_x : {-140, -126, -60, 0, 60, 125}) {
        SCOPED_TRACE(::testing::Message() << "scales about 2^" << exponent << ", x 2^" << of_x);
        std::vector<float> values = random_.floats(rows * in);
        // One row of another size, and one that is zero.
        for (std::int64_t i = 0; i < 6 * in; ++i) {
          float& value = values[static_cast<std::size_t>(i)];
          value = i < in ? 0.0F : std::ldexp(value, of_x);
        }
        const Input x(values, rows, DType::f32);
        const std::vector<std::uint32_t> expected = bits_of(multiply(w, x, {.is_plain = true}));
        for (const Way& way : ways()) {
          EXPECT_EQ(bits_of(multiply(w, x, way)), expected) << name_of(way);
        }
      }
    }
  }
}

TEST_F(QuantizedGemmTest, NoNumbersMakeTheirRowsNoNumbers) {
  constexpr std::int64_t in = 256;
  constexpr std::int64_t rows = 5;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const char* name : {"int4-g32", "int8-g0", "int8-g64z", "mxfp4"}) {
    const WeightFormat format = parse_weight_format(name);
    const CodedWeight w(random_, format, 64, in);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      std::vector<float> values = random_.floats(rows * in);
      values[5] = std::numeric_limits<float>::quiet_NaN();
      values[2 * in + 255] = infinity;
      values[3 * in + 100] = -infinity;
      const Input x(values, rows, dtype);
      for (const Way& way : ways()) {
        SCOPED_TRACE(name_of(way));
        const std::vector<float> c = multiply(w, x, way);
        for (std::int64_t i = 0; i < rows * strip_columns; ++i) {
          const std::int64_t row = i / strip_columns;
          const bool is_number = row == 1 || row == 4;
          EXPECT_EQ(std::isfinite(c[static_cast<std::size_t>(i)]), is_number) << "row " << row;
          EXPECT_NE(std::isnan(c[static_cast<std::size_t>(i)]), is_number) << "row " << row;
        }
      }
    }
  }
}

TEST_F(QuantizedGemmTest, ZeroRowsAreZero) {
  constexpr std::int64_t in = 96;
  for (const char* name : {"int4-g32", "int8-g0z", "mxfp4"}) {
    const CodedWeight w(random_, parse_weight_format(name), 64, in);
    const Input x(std::vector<float>(3 * in, 0.0F), 3, DType::bf16);
    for (const Way& way : ways()) {
      const std::vector<float> c = multiply(w, x, way);
      EXPECT_EQ(c, std::vector<float>(c.size(), 0.0F)) << name_of(way);
    }
  }
}

/// bf16 has 8 bits, so the numbers of those near a block's largest lose none.
TEST_F(QuantizedGemmTest, ShortValuesAreExact) {
  const WeightFormat format = parse_weight_format("int4-g32");
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) {
    values.push_back(std::ldexp(static_cast<float>(254 - i), i % 2 == 0 ? -20 : -26));
  }
  const Input x(values, 1, DType::bf16);
  const Buffer digits = x.digits(format, 32, DigitOrder::words);
  const DigitLayout layout(format, 32, DigitOrder::words);
  float scale = 0;
  std::memcpy(&scale, digits.data() + layout.scales_offset(), sizeof(scale));
  for (std::size_t i = 0; i < 32; ++i) {
    constexpr std::size_t place[4] = {0, 2, 1, 3};
    std::int16_t number = 0;
    std::memcpy(&number, digits.data() + 2 * (i / 4 * 4 + place[i % 4]), sizeof(number));
    EXPECT_EQ(static_cast<float>(number) * scale, x.x.values[i]) << i;
  }
}

/// Digits of the smallest and the largest values, and of those whose numbers just fit.
TEST_F(QuantizedGemmTest, DigitsAreNearestNumbers) {
  const WeightFormat format = parse_weight_format("int8-g32");
  for (const float largest :
       {32639.0F, 32639.49F, 32639.5F, 32767.9F, 1e-45F, 1e-40F, 3e38F, 1.0F, 16384.0F}) {
    std::vector<float> values = random_.floats(32, static_cast<double>(largest));
    values[9] = largest;
    values[10] = -largest;
    const Input x(values, 1, DType::f32);
    for (const DigitOrder order : {DigitOrder::words, DigitOrder::bytes}) {
      const DigitLayout layout(format, 32, order);
      const Buffer digits = x.digits(format, 32, order);
      float scale = 0;
      std::int32_t start = 0;
      std::memcpy(&scale, digits.data() + layout.scales_offset(), sizeof(scale));
      std::memcpy(&start, digits.data() + layout.starts_offset(), sizeof(start));
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        std::int32_t number = 0;
        if (order == DigitOrder::bytes) {
          number = 256 * static_cast<std::int8_t>(digits.data()[i]) +
                   static_cast<std::int8_t>(digits.data()[32 + i]);
        } else {
          constexpr std::size_t place[4] = {0, 2, 1, 3};
          std::int16_t word = 0;
          std::memcpy(&word, digits.data() + 2 * (i / 4 * 4 + place[i % 4]), sizeof(word));
          number = word;
        }
        EXPECT_EQ(number, std::lrint(static_cast<double>(values[i]) / static_cast<double>(scale)));
        sum += number;
      }
      EXPECT_EQ(start, -128 * sum);
      EXPECT_EQ(
          std::ilogb(scale),
          std::max(-125, std::ilogb(largest) - 14 +
                             (std::ldexp(largest, 14 - std::ilogb(largest)) >= 32639.5F ? 1 : 0)));
    }
  }
}

}  // namespace
}  // namespace sluice
