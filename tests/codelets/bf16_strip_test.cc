// The AVX-512 kernels, against double precision and against oneDNN's own packing.
#include "codelets/kernels/bf16_strip.h"

#include <gtest/gtest.h>

#include <cstring>
#include <dnnl.hpp>
#include <limits>

#include "base/memory.h"
#include "tests/codelets/bf16_arithmetic_test.h"

namespace sluice {
namespace {

using test::Numbers;
using test::Random;

class Bf16StripTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_bf16_strips()) GTEST_SKIP() << "this CPU has no AVX-512";
  }
  Random random_{91};
};

class StripGemmTest : public test::Bf16ArithmeticTest {};
INSTANTIATE_TEST_SUITE_P(Either, StripGemmTest, test::Bf16ArithmeticTest::both(),
                         StripGemmTest::name);

TEST_F(Bf16StripTest, PackingIsOneDnns) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  for (const std::int64_t depth : {2, 30, 32, 34, 64, 130, 2048}) {
    for (const std::int64_t columns : {1, 15, 16, 17, 63, 64}) {
      Numbers rows(random_, columns * depth);
      const dnnl::memory::desc plain({depth, columns}, dnnl::memory::data_type::bf16,
                                     dnnl::memory::format_tag::ba);
      const dnnl::memory::desc packed({depth, columns}, dnnl::memory::data_type::bf16,
                                      dnnl::memory::format_tag::BA16a64b2a);
      ASSERT_EQ(packed.get_size(), 2 * static_cast<std::size_t>(strip_elements(depth)));
      const Buffer expected(packed.get_size());
      const Buffer result(packed.get_size());
      std::memset(result.data(), 0x5a, result.size());
      dnnl::memory from(plain, engine, rows.bits.data());
      dnnl::memory to(packed, engine, expected.data());
      dnnl::stream stream(engine);
      dnnl::reorder(from, to).execute(stream, from, to);
      stream.wait();
      EXPECT_EQ(pack_strip(rows.bits.data(), columns, depth, result.as<std::uint16_t>()),
                StripValues::finite);
      EXPECT_EQ(std::memcmp(result.data(), expected.data(), result.size()), 0)
          << depth << " x " << columns;
    }
  }
}

TEST_F(Bf16StripTest, PackingFindsWhatIsNoNumber) {
  constexpr std::int64_t depth = 70;
  constexpr std::int64_t columns = 33;
  const Buffer strip(2 * static_cast<std::size_t>(strip_elements(depth)));
  for (const std::uint16_t bad : {std::uint16_t{0x7f80}, std::uint16_t{0xff80},
                                  std::uint16_t{0x7fc0}, std::uint16_t{0xff81}}) {
    for (const std::int64_t at :
         {std::int64_t{0}, std::int64_t{1}, 16 * depth + 69, columns * depth - 1}) {
      Numbers rows(random_, columns * depth);
      rows.bits[static_cast<std::size_t>(at)] = bad;
      EXPECT_EQ(pack_strip(rows.bits.data(), columns, depth, strip.as<std::uint16_t>()),
                StripValues::not_finite)
          << bad << " at " << at;
    }
  }
}

/// The largest finite number is one.
TEST_F(Bf16StripTest, PackingTakesTheLargestNumber) {
  const std::vector<std::uint16_t> rows(64 * 32, 0x7f7f);
  const Buffer strip(2 * static_cast<std::size_t>(strip_elements(32)));
  EXPECT_EQ(pack_strip(rows.data(), 64, 32, strip.as<std::uint16_t>()), StripValues::finite);
}

TEST_P(StripGemmTest, ProductMatchesReferenceAndRowsAreAlone) {
  for (const std::int64_t depth : {2, 34, 512, 2050, 4098}) {
    Numbers weight(random_, strip_columns * depth);
    const Buffer strip(2 * static_cast<std::size_t>(strip_elements(depth)));
    pack_strip(weight.bits.data(), strip_columns, depth, strip.as<std::uint16_t>());
    for (const std::int64_t rows : {1, 2, 3, 5, 6, 7, 11, 12, 16, 17, 24, 25, 64, 100}) {
      const std::int64_t a_stride = depth + 6;
      Numbers a(random_, rows * a_stride);
      const std::int64_t c_stride = strip_columns + 3;
      for (const bool accumulate : {false, true}) {
        std::vector<float> c(static_cast<std::size_t>(rows * c_stride), 0.25F);
        StripGemm call{.rows = rows,
                       .depth = depth,
                       .a = a.bits.data(),
                       .a_stride = a_stride,
                       .b = strip.as<std::uint16_t>(),
                       .c = c.data(),
                       .c_stride = c_stride,
                       .accumulate = accumulate,
                       .source = rows % 2 == 0 ? StripSource::memory : StripSource::cache,
                       .arithmetic = GetParam()};
        strip_gemm(call);
        std::vector<float> result;
        std::vector<double> expected;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t j = 0; j < strip_columns; ++j) {
            double sum = accumulate ? 0.25 : 0;
            for (std::int64_t i = 0; i < depth; ++i) {
              sum += static_cast<double>(a.values[static_cast<std::size_t>(r * a_stride + i)]) *
                     static_cast<double>(weight.values[static_cast<std::size_t>(j * depth + i)]);
            }
            expected.push_back(sum);
            result.push_back(c[static_cast<std::size_t>(r * c_stride + j)]);
          }
          for (std::int64_t j = strip_columns; j < c_stride; ++j) {
            EXPECT_EQ(c[static_cast<std::size_t>(r * c_stride + j)], 0.25F)
                << "outside of the strip";
          }
        }
        test::expect_close(result, expected,
                           test::tolerance(DType::bf16, test::GemmInput::exact, DType::f32));
        if (GetParam() == Bf16Arithmetic::multiply_add) {  // the same numbers in f32
          std::vector<float> wide(c.size(), 0.25F);
          call.wide_a = a.values.data();
          call.c = wide.data();
          strip_gemm(call);
          EXPECT_EQ(wide, c);
          call.wide_a = nullptr;
        }
        // The last row alone.
        std::vector<float> alone(strip_columns, 0.25F);
        call.rows = 1;
        call.a += (rows - 1) * a_stride;
        call.c = alone.data();
        strip_gemm(call);
        EXPECT_EQ(std::memcmp(alone.data(), &c[static_cast<std::size_t>((rows - 1) * c_stride)],
                              alone.size() * sizeof(float)),
                  0)
            << rows << " rows, depth " << depth;
      }
    }
  }
}

/// Numbers too small to be normal count as zero, and the caller's own stay as they are.
TEST_P(StripGemmTest, SubnormalNumbersAreZeros) {
  constexpr std::int64_t depth = 4;
  constexpr std::uint16_t subnormal = 0x0001;
  constexpr std::uint16_t huge = 0x7e80;  // 2^126: their product is a normal number
  const std::vector<std::uint16_t> weight(strip_columns * depth, subnormal);
  const Buffer strip(2 * static_cast<std::size_t>(strip_elements(depth)));
  pack_strip(weight.data(), strip_columns, depth, strip.as<std::uint16_t>());
  for (const std::int64_t rows : {1, 7}) {
    const std::vector<std::uint16_t> a(static_cast<std::size_t>(rows * depth), huge);
    std::vector<float> c(static_cast<std::size_t>(rows * strip_columns), 1.0F);
    strip_gemm({.rows = rows,
                .depth = depth,
                .a = a.data(),
                .a_stride = depth,
                .b = strip.as<std::uint16_t>(),
                .c = c.data(),
                .c_stride = strip_columns,
                .arithmetic = GetParam()});
    EXPECT_EQ(c, std::vector<float>(c.size(), 0.0F)) << rows << " rows";
  }
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_GT(smallest / 2, 0.0F);
}

}  // namespace
}  // namespace sluice
