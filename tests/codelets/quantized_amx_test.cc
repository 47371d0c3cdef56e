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
#include "tests/codelets/emulated_amx.h"

namespace sluice {
namespace {

using quantized::Arithmetic;
using quantized::DigitLayout;
using test::EmulatedAmx;
using test::Random;

#if defined(__x86_64__)

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
