// The tiles' kernel for quantised weights over an emulation of AMX-INT8. Where a CPU has it,
// quantized_gemm_test.cc compares the instructions' own bits.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/memory.h"
#include "codelets/kernels/bf16_arithmetic.h"
#include "codelets/kernels/quantized/amx.h"
#include "codelets/kernels/quantized/plain_kernel.h"
#include "tests/codelets/codelet_data.h"

namespace sluice {
namespace {

using quantized::Arithmetic;
using quantized::DigitLayout;
using test::Random;

#if defined(__x86_64__)

/// AMX-INT8 as Intel's manual describes it (Architecture Instruction Set Extensions, chapter 3).
class EmulatedAmx {
 public:
  static void configure(const strip::AmxConfiguration& wanted) {
    ASSERT_EQ(wanted.palette, 1);
    configuration = wanted;
    in_use = true;
  }
  static void release() { in_use = false; }
  template <int Tile>
  static void zero() {
    ASSERT_TRUE(exists(Tile));
    tiles[Tile] = {};
  }
  template <int Tile>
  static void load(const void* from, std::int64_t stride_bytes) {
    ASSERT_TRUE(exists(Tile));
    tiles[Tile] = {};
    for (std::int64_t row = 0; row < rows(Tile); ++row) {
      std::memcpy(tiles[Tile].at(static_cast<std::size_t>(row)).data(),
                  static_cast<const std::byte*>(from) + row * stride_bytes, row_bytes(Tile));
    }
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride_bytes) {
    ASSERT_TRUE(exists(Tile));
    for (std::int64_t row = 0; row < rows(Tile); ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride_bytes,
                  tiles[Tile].at(static_cast<std::size_t>(row)).data(), row_bytes(Tile));
    }
  }
  /// TDPBSUD
  template <int Sum, int A, int B>
  static void multiply_bytes() {
    ASSERT_TRUE(exists(Sum) && exists(A) && exists(B));
    ASSERT_EQ(rows(Sum), rows(A));
    ASSERT_EQ(row_bytes(Sum), row_bytes(B));
    ASSERT_EQ(row_bytes(A), 4U * static_cast<std::size_t>(rows(B)));
    for (std::size_t m = 0; m < static_cast<std::size_t>(rows(A)); ++m) {
      for (std::size_t n = 0; n < row_bytes(B) / 4; ++n) {
        std::int32_t sum = 0;
        std::memcpy(&sum, &tiles[Sum][m][4 * n], sizeof(sum));
        for (std::size_t k = 0; k < row_bytes(A); ++k) {
          sum += static_cast<std::int8_t>(tiles[A][m][k]) *
                 static_cast<std::int32_t>(tiles[B][k / 4][4 * n + k % 4]);
        }
        std::memcpy(&tiles[Sum][m][4 * n], &sum, sizeof(sum));
      }
    }
  }
  static bool is_released() { return !in_use; }

 private:
  using Tile = std::array<std::array<std::byte, 64>, 16>;
  static std::int64_t rows(int tile) {
    return configuration.rows.at(static_cast<std::size_t>(tile));
  }
  static std::size_t row_bytes(int tile) {
    return configuration.row_bytes.at(static_cast<std::size_t>(tile));
  }
  static bool exists(int tile) {
    return in_use && tile < 8 && rows(tile) > 0 && row_bytes(tile) > 0;
  }

  static inline strip::AmxConfiguration configuration;
  static inline std::array<Tile, 8> tiles;
  static inline bool in_use = false;
};

class QuantizedAmxTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Each, QuantizedAmxTest,
                         ::testing::Values("int4-g32", "int4-g64z", "int8-g0", "int8-g128z",
                                           "mxfp4"));

TEST_P(QuantizedAmxTest, HasTheBitsOfPlainArithmetic) {
  if (!has_arithmetic(Bf16Arithmetic::multiply_add)) GTEST_SKIP() << "this CPU has no AVX-512";
  const WeightFormat format = parse_weight_format(GetParam());
  Random random(46);
  constexpr std::int64_t strips = 2;
  constexpr std::int64_t c_stride = strips * strip_columns + 3;
  for (const std::int64_t in : {32, 128, 416, 1000}) {
    for (const std::int64_t rows : {1, 5, 16, 17, 40}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, depth " << in);
      const quantized::StripLayout layout(format, in);
      const Buffer w(static_cast<std::size_t>(strips * layout.size_bytes()));
      for (std::size_t i = 0; i < w.size(); ++i)
        w.data()[i] = static_cast<std::byte>(random.bits());
      for (std::int64_t i = 0; i < strips * layout.num_groups(); ++i) {
        std::byte* scales = w.data() + i / layout.num_groups() * layout.size_bytes() +
                            layout.scales_offset(i % layout.num_groups());
        for (std::int64_t at = 0; at < layout.scale_bytes(); ++at) {
          const bool is_upper = format.scales == WeightFormat::Scales::f16 && at % 2 == 1;
          scales[at] = static_cast<std::byte>(is_upper ? 0x1c : 100 + random.below(20));
        }
      }
      const test::Numbers x(random, rows * in);
      const auto multiply = [&](Arithmetic arithmetic, auto&& by) {
        const DigitLayout digits(format, in, quantized::digit_order(arithmetic));
        const Buffer memory(static_cast<std::size_t>(rows * digits.row_bytes()));
        quantized::make_digits(digits, {DType::bf16, x.bits.data(), rows, in}, memory.data());
        std::vector<float> c(static_cast<std::size_t>(rows * c_stride), 0.25F);
        for (const bool accumulate : {false, true}) {
          by(quantized::Gemm{.format = format,
                             .rows = rows,
                             .in = in,
                             .digits = memory.data(),
                             .w = w.data(),
                             .strips = strips,
                             .c = c.data(),
                             .c_stride = c_stride,
                             .accumulate = accumulate,
                             .arithmetic = arithmetic});
        }
        return c;
      };
      const std::vector<float> by_tiles =
          multiply(Arithmetic::amx, [](const quantized::Gemm& call) {
            quantized::AmxMultiplication<EmulatedAmx>(call).run();
          });
      ASSERT_TRUE(EmulatedAmx::is_released());
      const std::vector<float> plain =
          multiply(Arithmetic::portable, [](const quantized::Gemm& call) {
            quantized::Multiplication<quantized::PlainKernel>(call).run();
          });
      EXPECT_EQ(by_tiles, plain);
    }
  }
}

#endif

}  // namespace
}  // namespace sluice
