// The strips' kernel for AMX over an emulation of its instructions, and the emulation beside a CPU
// that has them.
#include "codelets/kernels/strip_amx.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/codelets/codelet_data.h"
#include "tests/codelets/emulated_amx.h"

namespace sluice {
namespace {

using test::EmulatedAmx;
using test::Numbers;
using test::Random;

constexpr std::int64_t strips = 2;

constexpr std::uint16_t not_a_number = 0x7fc0;

/// A product of strips: its operands, and the result [rows, c_stride]. Behind each row of A there
/// are no numbers.
struct Product {
  Product(Random& random, std::int64_t num_rows, std::int64_t the_depth)
      : rows(num_rows),
        depth(the_depth),
        weight(random, strips * strip_columns * depth),
        a(random, rows * (depth + 6)),
        packed(strips * strip_bytes(depth, DType::bf16)) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto end = a.bits.begin() + row * (depth + 6) + depth;
      std::fill(end, end + 6, not_a_number);
    }
    for (std::int64_t strip = 0; strip < strips; ++strip) {
      // The portable packing runs on every CPU.
      pack_strip({.rows = weight.bits.data() + strip * strip_columns * depth,
                  .columns = strip_columns,
                  .depth = depth},
                 packed.data() + static_cast<std::size_t>(strip) * strip_bytes(depth, DType::bf16),
                 Bf16Arithmetic::portable);
    }
  }

  /// Rows from `first` on.
  StripGemm call(std::int64_t first, std::vector<float>& c) const {
    return {.rows = rows - first,
            .depth = depth,
            .a = a.bits.data() + first * (depth + 6),
            .a_stride = depth + 6,
            .b = packed.data(),
            .strips = strips,
            .c = c.data() + first * c_stride,
            .c_stride = c_stride,
            .arithmetic = Bf16Arithmetic::amx};
  }
  std::vector<float> result() const {
    return std::vector<float>(static_cast<std::size_t>(rows * c_stride), before);
  }

  static constexpr std::int64_t c_stride = strips * strip_columns + 3;
  static constexpr float before = 0.25F;
  std::int64_t rows, depth;
  Numbers weight, a;
  Buffer packed;
};

class StripAmxTest : public ::testing::Test {
 protected:
  /// Leaves no numbers where rows are widened.
  void spoil_scratch(std::int64_t rows) {
    Product product(random_, rows, 256);
    std::fill(product.a.bits.begin(), product.a.bits.end(), not_a_number);
    std::vector<float> c = product.result();
    strip::gemm_in_amx_order(product.call(0, c));
  }

  Random random_{93};
};

TEST_F(StripAmxTest, MatchesReferenceAndRowsAreAlone) {
  for (const std::int64_t depth : {2, 34, 514, 2082}) {
    for (const std::int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 65}) {
      if (depth > 1000 && rows != 16 && rows != 33) continue;  // several blocks of either kernel
      SCOPED_TRACE(::testing::Message() << rows << " rows, depth " << depth);
      const Product product(random_, rows, depth);
      for (const bool accumulate : {false, true}) {
        std::vector<float> c = product.result();
        StripGemm call = product.call(0, c);
        call.accumulate = accumulate;
        call.source = rows % 2 == 0 ? StripSource::memory : StripSource::cache;
        strip::gemm_by_amx<EmulatedAmx>(call);
        ASSERT_TRUE(EmulatedAmx::is_released());
        std::vector<float> result;
        std::vector<double> expected;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t j = 0; j < strips * strip_columns; ++j) {
            double sum = accumulate ? Product::before : 0;
            for (std::int64_t i = 0; i < depth; ++i) {
              sum += static_cast<double>(
                         product.a.values[static_cast<std::size_t>(r * (depth + 6) + i)]) *
                     static_cast<double>(
                         product.weight.values[static_cast<std::size_t>(j * depth + i)]);
            }
            expected.push_back(sum);
            result.push_back(c[static_cast<std::size_t>(r * Product::c_stride + j)]);
          }
          for (std::int64_t j = strips * strip_columns; j < Product::c_stride; ++j) {
            ASSERT_EQ(c[static_cast<std::size_t>(r * Product::c_stride + j)], Product::before)
                << "outside of the strips";
          }
        }
        test::expect_close(result, expected,
                           test::tolerance(DType::bf16, test::GemmInput::exact, DType::f32));
        // The last row alone.
        std::vector<float> alone = product.result();
        call = product.call(rows - 1, alone);
        call.accumulate = accumulate;
        strip::gemm_by_amx<EmulatedAmx>(call);
        const std::int64_t last = (rows - 1) * Product::c_stride;
        EXPECT_TRUE(std::equal(alone.begin() + last, alone.end(), c.begin() + last));
      }
    }
  }
}

TEST_F(StripAmxTest, SchedulesChangeNoBit) {
  for (const std::int64_t depth : {2, 66, 674, 2082}) {
    for (const std::int64_t rows : {1, 16, 17, 45}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, depth " << depth);
      const Product product(random_, rows, depth);
      std::vector<float> own = product.result();
      strip::gemm_by_amx<EmulatedAmx>(product.call(0, own));
      for (const StripTile& tile : {strip::amx_low_tile, strip::amx_square_tile}) {
        for (const std::int64_t block_depth : {64, 192, 1 << 20}) {
          std::vector<float> c = product.result();
          StripGemm call = product.call(0, c);
          call.schedule = {.tile = tile, .block_depth = block_depth, .fetch_bytes = 4096};
          strip::gemm_by_amx<EmulatedAmx>(call);
          EXPECT_EQ(c, own) << "tile " << tile.rows << " x " << tile.columns << ", blocks "
                            << block_depth;
        }
      }
    }
  }
}

TEST_F(StripAmxTest, VectorsGiveTheSameBits) {
  if (!has_arithmetic(Bf16Arithmetic::multiply_add)) GTEST_SKIP() << "this CPU has no AVX-512";
  for (const std::int64_t depth : {2, 30, 34, 64, 512, 674}) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 9}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, depth " << depth);
      const Product product(random_, rows, depth);
      spoil_scratch(rows);
      for (const bool accumulate : {false, true}) {
        for (const StripSource source : {StripSource::cache, StripSource::memory}) {
          std::vector<float> by_tiles = product.result();
          std::vector<float> in_vectors = product.result();
          StripGemm call = product.call(0, by_tiles);
          call.accumulate = accumulate;
          call.source = source;
          strip::gemm_by_amx<EmulatedAmx>(call);
          call.c = in_vectors.data();
          strip::gemm_in_amx_order(call);
          EXPECT_EQ(in_vectors, by_tiles);
        }
      }
    }
  }
}

TEST_F(StripAmxTest, CpuHasTheBitsOfTheEmulation) {
  if (!has_arithmetic(Bf16Arithmetic::amx)) GTEST_SKIP() << "this CPU has no AMX";
  for (const std::int64_t depth : {32, 514, 2082}) {
    for (const std::int64_t rows : {1, 5, 16, 33, 40}) {
      const Product product(random_, rows, depth);
      for (const bool accumulate : {false, true}) {
        std::vector<float> emulated = product.result();
        std::vector<float> computed = product.result();
        StripGemm call = product.call(0, emulated);
        call.accumulate = accumulate;
        strip::gemm_by_amx<EmulatedAmx>(call);
        call.c = computed.data();
        strip_gemm(call);
        EXPECT_EQ(computed, emulated) << rows << " rows, depth " << depth;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
