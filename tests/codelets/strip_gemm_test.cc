// The strips' kernels, against double precision and against oneDNN's own packing.
#include "codelets/kernels/strip_gemm.h"

#include <gtest/gtest.h>

#include <cstring>
#include <dnnl.hpp>
#include <limits>

#include "base/memory.h"
#include "tests/codelets/bf16_arithmetic_test.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using test::Numbers;
using test::Operand;
using test::Random;

/// An arithmetic, and the type of B.
struct StripCase {
  Bf16Arithmetic arithmetic;
  DType dtype;
};

class StripTest : public ::testing::TestWithParam<StripCase> {
 public:
  static std::string name(const ::testing::TestParamInfo<StripCase>& info) {
    return test::name_of(info.param.arithmetic) + "_" + test::name_of(info.param.dtype);
  }

 protected:
  void SetUp() override {
    if (!has_arithmetic(arithmetic())) GTEST_SKIP() << "this CPU has not what it takes";
  }
  static Bf16Arithmetic arithmetic() { return GetParam().arithmetic; }
  static DType dtype() { return GetParam().dtype; }
  /// Odd ones too, where the arithmetic takes them.
  static std::vector<std::int64_t> depths(std::vector<std::int64_t> even) {
    if (arithmetic() != Bf16Arithmetic::portable) return even;
    for (const std::int64_t odd : {1, 3, 31, 33, 511}) even.push_back(odd);
    return even;
  }
  static StripValues pack(const Operand& rows, std::int64_t columns, std::int64_t depth,
                          const Buffer& strip) {
    return pack_strip({.dtype = dtype(), .rows = rows.data(), .columns = columns, .depth = depth},
                      strip.data(), arithmetic());
  }
  /// Strips of random numbers, one behind the other.
  Buffer strips_of(std::int64_t strips, std::int64_t depth) {
    const std::size_t each = strip_bytes(depth, dtype());
    Buffer b(static_cast<std::size_t>(strips) * each);
    for (std::size_t i = 0; i < static_cast<std::size_t>(strips); ++i) {
      const Operand weight = test::make_operand(random_.floats(strip_columns * depth), dtype());
      pack_strip(
          {.dtype = dtype(), .rows = weight.data(), .columns = strip_columns, .depth = depth},
          b.data() + i * each, arithmetic());
    }
    return b;
  }
  /// C = A B of dense rows and all strips.
  static StripGemm call_of(const Operand& a, std::int64_t rows, std::int64_t depth, const Buffer& b,
                           std::int64_t strips, std::vector<float>& c) {
    const bool is_f32 = dtype() == DType::f32;
    return {.dtype = dtype(),
            .rows = rows,
            .depth = depth,
            .a = is_f32 ? nullptr : reinterpret_cast<const std::uint16_t*>(a.data()),
            .wide_a = is_f32 ? a.values.data() : nullptr,
            .a_stride = depth,
            .b = b.data(),
            .strips = strips,
            .c = c.data(),
            .c_stride = strips * strip_columns,
            .arithmetic = arithmetic()};
  }
  Random random_{91};
};
INSTANTIATE_TEST_SUITE_P(Each, StripTest,
                         ::testing::Values(StripCase{Bf16Arithmetic::dot_products, DType::bf16},
                                           StripCase{Bf16Arithmetic::multiply_add, DType::bf16},
                                           StripCase{Bf16Arithmetic::amx, DType::bf16},
                                           StripCase{Bf16Arithmetic::portable, DType::bf16},
                                           StripCase{Bf16Arithmetic::portable, DType::f32}),
                         StripTest::name);

TEST_P(StripTest, PackingIsOneDnns) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const bool is_f32 = dtype() == DType::f32;
  const auto type = is_f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  const auto tag =
      is_f32 ? dnnl::memory::format_tag::BA16a64b : dnnl::memory::format_tag::BA16a64b2a;
  for (const std::int64_t depth : depths({2, 30, 32, 34, 64, 130, 2048})) {
    for (const std::int64_t columns : {1, 15, 16, 17, 63, 64}) {
      Operand rows = test::make_operand(random_.floats(columns * depth), dtype());
      const dnnl::memory::desc plain({depth, columns}, type, dnnl::memory::format_tag::ba);
      const dnnl::memory::desc packed({depth, columns}, type, tag);
      ASSERT_EQ(packed.get_size(), strip_bytes(depth, dtype()));
      const Buffer expected(packed.get_size());
      const Buffer result(packed.get_size());
      std::memset(result.data(), 0x5a, result.size());
      dnnl::memory from(plain, engine, const_cast<std::byte*>(rows.data()));
      dnnl::memory to(packed, engine, expected.data());
      dnnl::stream stream(engine);
      dnnl::reorder(from, to).execute(stream, from, to);
      stream.wait();
      EXPECT_EQ(pack(rows, columns, depth, result), StripValues::finite);
      EXPECT_EQ(std::memcmp(result.data(), expected.data(), result.size()), 0)
          << depth << " x " << columns;
    }
  }
}

TEST_P(StripTest, PackingFindsWhatIsNoNumber) {
  constexpr std::int64_t depth = 70;
  constexpr std::int64_t columns = 33;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Buffer strip(strip_bytes(depth, dtype()));
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::int64_t at :
         {std::int64_t{0}, std::int64_t{1}, 16 * depth + 69, columns * depth - 1}) {
      std::vector<float> values = random_.floats(columns * depth);
      values[static_cast<std::size_t>(at)] = bad;
      EXPECT_EQ(pack(test::make_operand(values, dtype()), columns, depth, strip),
                StripValues::not_finite)
          << bad << " at " << at;
    }
  }
}

/// The largest finite number is one.
TEST_P(StripTest, PackingTakesTheLargestNumber) {
  const float largest = to_float(BFloat16{0x7f7f});
  const Operand rows = test::make_operand(std::vector<float>(64 * 32, largest), dtype());
  EXPECT_EQ(pack(rows, 64, 32, Buffer(strip_bytes(32, dtype()))), StripValues::finite);
}

TEST_P(StripTest, ProductMatchesReferenceAndRowsAreAlone) {
  for (const std::int64_t depth : depths({2, 34, 512, 2050, 4098})) {
    const Operand weight = test::make_operand(random_.floats(strip_columns * depth), dtype());
    const Buffer strip(strip_bytes(depth, dtype()));
    pack(weight, strip_columns, depth, strip);
    for (const std::int64_t rows : {1, 2, 3, 5, 6, 7, 11, 12, 16, 17, 24, 25, 64, 100}) {
      const std::int64_t a_stride = depth + 6;
      const Operand a = test::make_operand(random_.floats(rows * a_stride), dtype());
      const std::int64_t c_stride = strip_columns + 3;
      for (const bool accumulate : {false, true}) {
        std::vector<float> c(static_cast<std::size_t>(rows * c_stride), 0.25F);
        StripGemm call{.dtype = dtype(),
                       .rows = rows,
                       .depth = depth,
                       .a_stride = a_stride,
                       .b = strip.data(),
                       .c = c.data(),
                       .c_stride = c_stride,
                       .accumulate = accumulate,
                       .source = rows % 2 == 0 ? StripSource::memory : StripSource::cache,
                       .arithmetic = arithmetic()};
        const auto set_a = [&](const Operand& from, std::int64_t first) {
          call.a = nullptr;
          call.wide_a = nullptr;
          if (dtype() == DType::f32) {
            call.wide_a = reinterpret_cast<const float*>(from.data()) + first;
          } else {
            call.a = reinterpret_cast<const std::uint16_t*>(from.data()) + first;
          }
        };
        set_a(a, 0);
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
                           test::tolerance(dtype(), test::GemmInput::exact, DType::f32));
        if (arithmetic() == Bf16Arithmetic::multiply_add ||
            arithmetic() == Bf16Arithmetic::portable) {  // the same numbers in f32
          std::vector<float> wide(c.size(), 0.25F);
          call.a = nullptr;
          call.wide_a = a.values.data();
          call.c = wide.data();
          strip_gemm(call);
          EXPECT_EQ(wide, c);
        }
        // The last row alone.
        std::vector<float> alone(strip_columns, 0.25F);
        call.rows = 1;
        set_a(a, (rows - 1) * a_stride);
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

TEST_P(StripTest, StripsSideBySideAreTheSame) {
  constexpr std::int64_t depth = 674;
  constexpr std::int64_t strips = 3;
  const Buffer b = strips_of(strips, depth);
  for (const std::int64_t rows : {1, 7}) {
    const Operand a = test::make_operand(random_.floats(rows * depth), dtype());
    std::vector<float> together(static_cast<std::size_t>(rows * strips * strip_columns));
    std::vector<float> apart = together;
    for (const StripSource source : {StripSource::cache, StripSource::memory}) {
      StripGemm call = call_of(a, rows, depth, b, strips, together);
      call.source = source;
      strip_gemm(call);
      call.strips = 1;
      call.c = apart.data();
      for (std::int64_t i = 0; i < strips; ++i) {
        strip_gemm(call);
        call.b += strip_bytes(depth, dtype());
        call.c += strip_columns;
      }
      EXPECT_EQ(together, apart) << rows << " rows";
    }
  }
}

/// Every kernel, deep and shallow blocks, and every way to fetch.
TEST_P(StripTest, SchedulesChangeNoBit) {
  constexpr std::int64_t strips = 2;
  const std::span<const StripKernel> kernels = strip_kernels(dtype(), arithmetic());
  ASSERT_GE(kernels.size(), 2U);
  std::vector<StripSchedule> schedules;
  for (const StripKernel& kernel : kernels) {
    for (const std::int64_t depth : {64, 128, 192, 1024, 1 << 20}) {
      schedules.push_back(
          {.tile = kernel.tile, .block_depth = depth, .fetch_bytes = depth % 3 * 4096});
    }
  }
  for (const std::int64_t rows : {1, 2, 5, 13, 33})
    schedules.push_back(own_strip_schedule(rows, arithmetic()));
  schedules.push_back({.fetch_bytes = 8192});
  schedules.push_back({.block_depth = 64});
  for (const std::int64_t depth : depths({2, 66, 674, 4098})) {
    const Buffer b = strips_of(strips, depth);
    for (const std::int64_t rows : {1, 2, 5, 13, 33}) {
      const Operand a = test::make_operand(random_.floats(rows * depth), dtype());
      for (const StripSource source : {StripSource::cache, StripSource::memory}) {
        std::vector<float> own(static_cast<std::size_t>(rows * strips * strip_columns), 0.25F);
        const std::vector<float> before = own;
        StripGemm call = call_of(a, rows, depth, b, strips, own);
        call.accumulate = rows % 2 == 1;
        call.source = source;
        strip_gemm(call);
        for (const StripSchedule& schedule : schedules) {
          std::vector<float> c = before;
          call.c = c.data();
          call.schedule = schedule;
          strip_gemm(call);
          EXPECT_EQ(c, own) << rows << " rows, depth " << depth << ", tile " << schedule.tile.rows
                            << " x " << schedule.tile.columns << ", blocks "
                            << schedule.block_depth;
        }
      }
    }
  }
}

TEST_P(StripTest, SchedulesOfOtherCpusAreRefused) {
  const Buffer b = strips_of(1, 64);
  const Operand a = test::make_operand(random_.floats(64), dtype());
  std::vector<float> c(strip_columns);
  StripGemm call = call_of(a, 1, 64, b, 1, c);
  call.schedule = {.tile = {.rows = 5, .columns = 48}};
  testing::expect_error([&] { strip_gemm(call); }, {"5 x 48"});
  call.schedule = {.block_depth = 65};
  testing::expect_error([&] { strip_gemm(call); }, {"65", "64"});
}

/// Widened numbers have one sum, whatever the vectors, as far as the CPU does not round products.
TEST(StripGemmBitsTest, AreThoseOfAnyVectors) {
  if (!has_arithmetic(Bf16Arithmetic::multiply_add)) GTEST_SKIP() << "this CPU has no AVX-512";
  constexpr std::int64_t depth = 514;
  Random random(92);
  const Numbers weight(random, strip_columns * depth);
  const Buffer strip(strip_bytes(depth, DType::bf16));
  pack_strip({.rows = weight.bits.data(), .columns = strip_columns, .depth = depth}, strip.data());
  for (const std::int64_t rows : {1, 5, 64}) {
    const Numbers a(random, rows * depth);
    std::vector<std::vector<float>> results;
    for (const auto arithmetic : {Bf16Arithmetic::multiply_add, Bf16Arithmetic::portable}) {
      std::vector<float>& c = results.emplace_back(static_cast<std::size_t>(rows * strip_columns));
      strip_gemm({.rows = rows,
                  .depth = depth,
                  .a = a.bits.data(),
                  .a_stride = depth,
                  .b = strip.data(),
                  .c = c.data(),
                  .c_stride = strip_columns,
                  .arithmetic = arithmetic});
    }
    EXPECT_EQ(results[0], results[1]) << rows << " rows";
  }
}

/// In bf16 numbers too small to be normal count as zero, and the caller's own stay as they are.
class SubnormalTest : public test::Bf16ArithmeticTest {};
INSTANTIATE_TEST_SUITE_P(Each, SubnormalTest, test::Bf16ArithmeticTest::all(), SubnormalTest::name);

TEST_P(SubnormalTest, AreZeros) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "they keep their values here";
#endif
  constexpr std::int64_t depth = 4;
  constexpr std::uint16_t subnormal = 0x0001;
  constexpr std::uint16_t huge = 0x7e80;  // 2^126: their product is a normal number
  const std::vector<std::uint16_t> weight(strip_columns * depth, subnormal);
  const Buffer strip(strip_bytes(depth, DType::bf16));
  pack_strip({.rows = weight.data(), .columns = strip_columns, .depth = depth}, strip.data());
  for (const std::int64_t rows : {1, 7}) {
    const std::vector<std::uint16_t> a(static_cast<std::size_t>(rows * depth), huge);
    std::vector<float> c(static_cast<std::size_t>(rows * strip_columns), 1.0F);
    strip_gemm({.rows = rows,
                .depth = depth,
                .a = a.data(),
                .a_stride = depth,
                .b = strip.data(),
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
