// The vector loops: norms, rotary embedding, conversions, the epilogues of a product.
#include "codelets/kernels/simd.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>

#include "codelets/kernels/attention_simd.h"
#include "codelets/kernels/norm.h"
#include "tests/codelets/codelet_data.h"

namespace sluice {
namespace {

using test::Random;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t guard = 64;  // elements behind a result that must stay as they are

/// Memory for `count` elements of `dtype` and the guard, filled with a pattern.
struct Guarded {
  Guarded(std::int64_t count, DType dtype)
      : size(static_cast<std::size_t>(count) * size_bytes(dtype)),
        bytes(size + guard, std::byte{0x5a}) {}
  void expect_untouched() const {
    for (std::size_t i = size; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], std::byte{0x5a}) << i;
  }
  std::size_t size;
  std::vector<std::byte> bytes;
};

using NormCase = std::tuple<NormKind, DType>;
class NormRowTest : public ::testing::TestWithParam<NormCase> {};

TEST_P(NormRowTest, MatchesReferenceWithAndWithoutItsVectors) {
  const auto [kind, dtype] = GetParam();
  DecoderShape shape;
  shape.norm = kind;
  shape.norm_eps = 1e-3F;
  Random random(3);
  for (const std::int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 72, 200, 1000, 4097}) {
    for (int choice = 0; choice < 4; ++choice) {
      SCOPED_TRACE(::testing::Message() << "n " << n << ", choice " << choice);
      std::vector<float> x = random.floats(n, 2.0);
      for (float& value : x) value += 3.0F;  // a mean that is not zero
      const std::vector<float> weight = random.floats(n);
      const std::vector<float> bias = random.floats(n);
      const NormVectors norm{(choice & 1) != 0 ? weight.data() : nullptr,
                             (choice & 2) != 0 ? bias.data() : nullptr};
      const std::vector<double> wide(x.begin(), x.end());
      std::vector<double> expected(x.size());
      norm_reference(shape, norm, wide.data(), n, expected.data());
      if (n == 1 && kind == NormKind::layer_norm && norm.bias == nullptr) {
        expected[0] = 0;  // one element is its own mean
      }
      Guarded out(n, dtype);
      simd::norm_row(kind, x.data(), n, norm.weight, norm.bias, shape.norm_eps, dtype,
                     out.bytes.data());
      out.expect_untouched();
      test::expect_close(test::to_floats(out.bytes.data(), n, dtype), expected,
                         test::tolerance(dtype, test::GemmInput::exact, dtype));
      if (dtype == DType::f32) {
        const std::vector<float> apart = test::to_floats(out.bytes.data(), n, dtype);
        simd::norm_row(kind, x.data(), n, norm.weight, norm.bias, shape.norm_eps, dtype, x.data());
        EXPECT_EQ(x, apart) << "in place";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormRowTest,
                         ::testing::Combine(::testing::Values(NormKind::layer_norm,
                                                              NormKind::rms_norm),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& case_info) {
                           return test::to_string(std::get<0>(case_info.param)) + "_" +
                                  test::name_of(std::get<1>(case_info.param));
                         });

TEST(NormRowTest, HandComputed) {
  const std::vector<float> x = {1, 2, 3, 6};
  const std::vector<float> weight = {1, 2, 1, 1};
  const std::vector<float> bias = {0, 0, 0, 10};
  std::vector<float> y(4);
  // Mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5.
  simd::norm_row(NormKind::layer_norm, x.data(), 4, weight.data(), bias.data(), 0.5F, DType::f32,
                 y.data());
  EXPECT_EQ(y, (std::vector<float>{-1, -1, 0, 11.5}));
  // Mean of squares (1 + 4 + 9 + 36) / 4 = 12.5.
  simd::norm_row(NormKind::rms_norm, x.data(), 4, weight.data(), nullptr, 3.5F, DType::f32,
                 y.data());
  EXPECT_EQ(y, (std::vector<float>{0.25, 1, 0.75, 1.5}));
}

TEST(RopeHeadTest, RotatesHalvesAsPairs) {
  Random random(4);
  for (const std::int64_t dim : {2, 8, 24, 28, 30, 32, 62, 64, 66, 80, 128, 256}) {
    const std::int64_t half = dim / 2;
    std::vector<float> x = random.floats(dim + guard);
    const std::vector<float> before = x;
    std::vector<float> cos;
    std::vector<float> sin;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = random.uniform() * 7;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    simd::rope_head(x.data(), cos.data(), sin.data(), dim);
    std::vector<double> expected(before.begin(), before.end());
    for (std::size_t i = 0; i < cos.size(); ++i) {
      const auto low = static_cast<double>(before[i]);
      const auto high = static_cast<double>(before[i + cos.size()]);
      expected[i] = low * cos[i] - high * sin[i];
      expected[i + cos.size()] = high * cos[i] + low * sin[i];
    }
    SCOPED_TRACE(dim);
    test::expect_close(x, expected, {.of_largest = 2e-7});
    EXPECT_TRUE(std::equal(x.begin() + dim, x.end(), before.begin() + dim));
  }
}

TEST(StoreRowTest, RoundsToNearestEvenWhereverTheValueStands) {
  const auto bits = [](std::uint32_t b) { return std::bit_cast<float>(b); };
  struct Case {
    float value;
    std::uint16_t expected;
  };
  const std::vector<Case> cases = {
      {0.0F, 0x0000},
      {-0.0F, 0x8000},
      {1.0F, 0x3f80},
      {bits(0x3f807fff), 0x3f80},  // just below the middle
      {bits(0x3f808000), 0x3f80},  // the middle, even below
      {bits(0x3f808001), 0x3f81},  // just above
      {bits(0x3f818000), 0x3f82},  // the middle, even above
      {bits(0xbf818000), 0xbf82},
      {bits(0x3fffffff), 0x4000},  // carries into the exponent
      {std::numeric_limits<float>::max(), 0x7f80},
      {bits(0x7f7f7fff), 0x7f7f},  // the largest that stays finite
      {bits(0x7f7f8000), 0x7f80},
      {infinity, 0x7f80},
      {-infinity, 0xff80},
      {bits(0x00000001), 0x0000},  // the smallest subnormal
      {bits(0x00018000), 0x0002},
      {bits(0x80010000), 0x8001},
      {bits(0x7fc00000), 0x7fc0},
      {bits(0x7f800001), 0x7fc0},  // a NaN whose upper half alone would be an infinity
      {bits(0xffffffff), 0xffff},
  };
  constexpr std::int64_t n = 37;  // whole vectors and a tail
  for (std::int64_t at = 0; at < n; ++at) {
    for (const Case& c : cases) {
      std::vector<float> x(n, 2.0F);
      x[static_cast<std::size_t>(at)] = c.value;
      Guarded out(n, DType::bf16);
      simd::store_row(x.data(), n, DType::bf16, out.bytes.data());
      const auto* stored = reinterpret_cast<const std::uint16_t*>(out.bytes.data());
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(stored[i], i == at ? c.expected : 0x4000)
            << "bits " << std::bit_cast<std::uint32_t>(c.value) << " at " << at << ", element "
            << i;
      }
      out.expect_untouched();
    }
  }
}

TEST(StoreRowTest, KeepsF32AsItIs) {
  Random random(6);
  for (const std::int64_t n : {1, 15, 16, 17, 100}) {
    std::vector<float> x = random.floats(n);
    x.back() = -0.0F;
    Guarded out(n, DType::f32);
    simd::store_row(x.data(), n, DType::f32, out.bytes.data());
    EXPECT_EQ(test::to_floats(out.bytes.data(), n, DType::f32), x);
    out.expect_untouched();
    simd::store_row(x.data(), n, DType::f32, x.data());  // onto itself
    EXPECT_EQ(test::to_floats(out.bytes.data(), n, DType::f32), x);
  }
}

TEST(LoadRowTest, ReadsEveryTypeFromUnalignedMemory) {
  Random random(8);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t n : {1, 3, 15, 16, 17, 33, 100}) {
      const test::Operand x = test::make_operand(random.floats(n), dtype);
      for (const std::size_t shift : {0, 1, 2, 3}) {
        std::vector<std::byte> moved(shift);
        moved.insert(moved.end(), x.memory.begin(), x.memory.end());
        Guarded out(n, DType::f32);
        simd::load_row(moved.data() + shift, n, dtype, reinterpret_cast<float*>(out.bytes.data()));
        EXPECT_EQ(test::to_floats(out.bytes.data(), n, DType::f32), x.values)
            << test::name_of(dtype) << ", " << n << " elements, moved by " << shift;
        out.expect_untouched();
      }
    }
  }
}

class FindNotFiniteTest : public ::testing::TestWithParam<DType> {};

TEST_P(FindNotFiniteTest, NamesTheFirst) {
  const DType dtype = GetParam();
  // As bits, so that f16 can be told what it holds.
  const std::uint32_t one = dtype == DType::f32    ? 0x3f800000
                            : dtype == DType::bf16 ? 0x3f80
                                                   : 0x3c00;
  const std::uint32_t inf = dtype == DType::f32    ? 0x7f800000
                            : dtype == DType::bf16 ? 0x7f80
                                                   : 0x7c00;
  const std::uint32_t sign = dtype == DType::f32 ? 0x80000000 : 0x8000;
  const std::uint32_t largest = inf - 1;
  const auto put = [&](std::vector<std::byte>& x, std::int64_t i, std::uint32_t value) {
    for (std::size_t b = 0; b < size_bytes(dtype); ++b) {
      x[static_cast<std::size_t>(i) * size_bytes(dtype) + b] =
          static_cast<std::byte>(value >> (8 * b));
    }
  };
  for (const std::int64_t n : {1, 15, 16, 17, 511, 512, 513, 1030}) {
    std::vector<std::byte> good(static_cast<std::size_t>(n) * size_bytes(dtype));
    for (std::int64_t i = 0; i < n; ++i) {
      put(good, i, i % 3 == 0 ? largest : i % 3 == 1 ? largest | sign : one | sign);
    }
    EXPECT_EQ(simd::find_not_finite(good.data(), n, dtype), -1) << n;
    for (std::int64_t at = 0; at<n; at += n> 40 ? 29 : 1) {
      for (const std::uint32_t bad : {inf, inf | sign, inf + 1, inf | sign | 1}) {
        std::vector<std::byte> x = good;
        put(x, at, bad);
        put(x, n - 1, bad);  // a later one is not the first
        EXPECT_EQ(simd::find_not_finite(x.data(), n, dtype), at) << n << ", bits " << bad;
      }
    }
  }
  EXPECT_EQ(simd::find_not_finite(nullptr, 0, dtype), -1);
}

INSTANTIATE_TEST_SUITE_P(DTypes, FindNotFiniteTest,
                         ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

/// Of Activation::clamped_swiglu.
constexpr double test_limit = 1.25;

double epilogue_of(Epilogue epilogue, double y, double other) {
  switch (epilogue) {
    case Epilogue::store:
      return y;
    case Epilogue::accumulate:
      return y + other;
    case Epilogue::multiply:
      return y * other;
    case Epilogue::relu:
      return std::max(y, 0.0);
    case Epilogue::gelu:
      return y * 0.5 * std::erfc(-y / std::numbers::sqrt2);
    case Epilogue::gelu_tanh:
      return y * 0.5 *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (y + 0.044715 * y * y * y)));
    case Epilogue::clamped_gate: {
      const double clamped = std::min(y, test_limit);
      return clamped / (1 + std::exp(-1.702 * clamped));
    }
    case Epilogue::multiply_clamped:
      return (std::clamp(y, -test_limit, test_limit) + 1) * other;
    case Epilogue::silu:
      return y / (1 + std::exp(-y));
  }
  return std::nan("");
}

using TileCase = std::tuple<Epilogue, DType>;
class FinishTileTest : public ::testing::TestWithParam<TileCase> {};

TEST_P(FinishTileTest, MatchesFormulaAndStaysInItsColumns) {
  const auto [epilogue, dtype] = GetParam();
  if (epilogue == Epilogue::accumulate && dtype != DType::f32) {
    GTEST_SKIP() << "accumulates into f32 only";
  }
  Random random(11);
  constexpr std::int64_t rows = 3;
  for (const std::int64_t columns : {1, 5, 15, 16, 17, 64, 65, 129}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns, bias " << has_bias);
      const std::int64_t stride = columns + 7;
      const std::vector<float> tile = random.floats(rows * columns, 4.0);
      const std::vector<float> operand = random.floats(rows * columns, 4.0);
      const std::vector<float> bias = random.floats(columns);
      const test::Operand before = test::make_operand(random.floats(rows * stride, 4.0), dtype);
      std::vector<std::byte> dst = before.memory;
      simd::finish_tile({.epilogue = epilogue,
                         .rows = rows,
                         .columns = columns,
                         .tile = tile.data(),
                         .bias = has_bias ? bias.data() : nullptr,
                         .operand = operand.data(),
                         .limit = test_limit,
                         .dst = dst.data(),
                         .dst_stride = stride,
                         .dst_dtype = dtype});
      const std::vector<float> after = test::to_floats(dst.data(), rows * stride, dtype);
      std::vector<float> result;
      std::vector<double> expected;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < stride; ++c) {
          const auto at = static_cast<std::size_t>(r * stride + c);
          if (c >= columns) {
            EXPECT_EQ(after[at], before.values[at]) << "beyond the tile, row " << r;
            continue;
          }
          const auto in_tile = static_cast<std::size_t>(r * columns + c);
          const double y = static_cast<double>(tile[in_tile]) +
                           (has_bias ? static_cast<double>(bias[static_cast<std::size_t>(c)]) : 0);
          const float other =
              epilogue == Epilogue::accumulate ? before.values[at] : operand[in_tile];
          result.push_back(after[at]);
          expected.push_back(epilogue_of(epilogue, y, static_cast<double>(other)));
        }
      }
      test::expect_close(result, expected,
                         {.of_value = dtype == DType::bf16 ? 0x1p-8 : 0, .of_largest = 1e-6});
    }
  }
}

TEST_P(FinishTileTest, HoldsItsFormulaFarFromZero) {
  const auto [epilogue, dtype] = GetParam();
  if (epilogue == Epilogue::accumulate) GTEST_SKIP() << "nothing but a sum";
  std::vector<float> y = {0.0F,    -0.0F,  1e-30F, -1e-30F, 10.0F,  -10.0F,  30.0F,   -30.0F,
                          80.0F,   -80.0F, 88.5F,  -88.5F,  89.0F,  -89.0F,  103.0F,  -103.0F,
                          105.0F,  -105.F, 150.0F, -150.0F, 200.0F, -200.0F, 1000.0F, -1000.0F,
                          65504.F, -1e5F,  1e10F,  -1e10F,  3e38F,  -3e38F,  -130.0F};
  for (const float each : std::vector<float>(y)) {
    std::vector<float> tile(17, each);  // in whole vectors and in the tail
    const std::vector<float> ones(17, 1.0F);
    std::vector<std::byte> dst(17 * size_bytes(dtype));
    simd::finish_tile({.epilogue = epilogue,
                       .rows = 1,
                       .columns = 17,
                       .tile = tile.data(),
                       .operand = ones.data(),
                       .limit = test_limit,
                       .dst = dst.data(),
                       .dst_stride = 17,
                       .dst_dtype = dtype});
    double expected = epilogue_of(epilogue, static_cast<double>(each), 1.0);
    if (dtype == DType::bf16) expected = to_float(to_bf16(static_cast<float>(expected)));
    const double allowed = 1e-6 + std::abs(expected) * (dtype == DType::bf16 ? 0x1p-8 : 1e-5);
    for (const float result : test::to_floats(dst.data(), 17, dtype)) {
      EXPECT_NEAR(static_cast<double>(result), expected, allowed) << "of " << each;
    }
  }
}

TEST_P(FinishTileTest, LetsNotANumberThrough) {
  const auto [epilogue, dtype] = GetParam();
  if (epilogue == Epilogue::accumulate && dtype != DType::f32) {
    GTEST_SKIP() << "accumulates into f32 only";
  }
  const std::vector<float> tile(17, nan_value);
  const std::vector<float> ones(17, 1.0F);
  std::vector<std::byte> dst(17 * size_bytes(dtype));
  simd::finish_tile({.epilogue = epilogue,
                     .rows = 1,
                     .columns = 17,
                     .tile = tile.data(),
                     .operand = ones.data(),
                     .limit = test_limit,
                     .dst = dst.data(),
                     .dst_stride = 17,
                     .dst_dtype = dtype});
  for (const float result : test::to_floats(dst.data(), 17, dtype)) {
    EXPECT_TRUE(std::isnan(result)) << result;
  }
}

std::string to_name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::store:
      return "store";
    case Epilogue::accumulate:
      return "accumulate";
    case Epilogue::relu:
      return "relu";
    case Epilogue::gelu:
      return "gelu";
    case Epilogue::gelu_tanh:
      return "gelu_tanh";
    case Epilogue::silu:
      return "silu";
    case Epilogue::multiply:
      return "multiply";
    case Epilogue::clamped_gate:
      return "clamped_gate";
    case Epilogue::multiply_clamped:
      return "multiply_clamped";
  }
  return "?";
}

INSTANTIATE_TEST_SUITE_P(
    Epilogues, FinishTileTest,
    ::testing::Combine(::testing::Values(Epilogue::store, Epilogue::accumulate, Epilogue::relu,
                                         Epilogue::gelu, Epilogue::gelu_tanh, Epilogue::silu,
                                         Epilogue::multiply, Epilogue::clamped_gate,
                                         Epilogue::multiply_clamped),
                       ::testing::Values(DType::f32, DType::bf16)),
    [](const auto& case_info) {
      return to_name(std::get<0>(case_info.param)) + "_" +
             test::name_of(std::get<1>(case_info.param));
    });

TEST(FinishTileTest, MayWriteOverItsOwnTile) {
  Random random(12);
  std::vector<float> tile = random.floats(3 * 65, 3.0);
  const std::vector<float> before = tile;
  simd::finish_tile({.epilogue = Epilogue::relu,
                     .rows = 3,
                     .columns = 65,
                     .tile = tile.data(),
                     .dst = tile.data(),
                     .dst_stride = 65});
  for (std::size_t i = 0; i < tile.size(); ++i) EXPECT_EQ(tile[i], std::max(before[i], 0.0F));
}

TEST(FindLargestTest, IsTheFirstOfTheLargest) {
  test::Random random(77);
  for (const std::int64_t n : {1, 2, 15, 16, 17, 64, 1000, 1003}) {
    std::vector<float> x = random.floats(n, 3.0);
    for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      const float before = x[static_cast<std::size_t>(at)];
      x[static_cast<std::size_t>(at)] = 9.0F;
      EXPECT_EQ(simd::find_largest(x.data(), n), at) << n;
      const float last = std::exchange(x.back(), 9.0F);
      EXPECT_EQ(simd::find_largest(x.data(), n), at) << n << ", an equal one at the end";
      x.back() = last;
      x[static_cast<std::size_t>(at)] = before;
    }
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        std::vector<float> spoilt = x;
        spoilt[static_cast<std::size_t>(at)] = bad;
        EXPECT_EQ(simd::find_largest(spoilt.data(), n), -1) << n << ", " << bad << " at " << at;
      }
    }
  }
  EXPECT_EQ(simd::find_largest(nullptr, 0), -1);
}

TEST(FirstVisibleTokenTest, CountsTheTokenItself) {
  EXPECT_EQ(simd::first_visible_token(0, 0), 0);
  EXPECT_EQ(simd::first_visible_token(1000, 0), 0);
  EXPECT_EQ(simd::first_visible_token(6, 7), 0);
  EXPECT_EQ(simd::first_visible_token(7, 7), 1);
  EXPECT_EQ(simd::first_visible_token(5, 1), 5);
}

}  // namespace
}  // namespace sluice
