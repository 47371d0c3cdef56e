// linear() and gated_linear() over oneDNN's packed panels.
#include "codelets/kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "codelets/kernels/activate_ref.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/strip_gemm.h"
#include "codelets/weights/gemm_schedules.h"
#include "codelets/weights/plain.h"
#include "tests/codelets/codelet_data.h"

namespace sluice {
namespace {

using test::Random;

std::vector<double> reference_of(const test::Operand& x, const test::Operand& weight,
                                 const float* bias, std::int64_t rows, std::int64_t in,
                                 std::int64_t out) {
  std::vector<double> y(static_cast<std::size_t>(rows * out));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row(x.values.begin() + r * in, x.values.begin() + (r + 1) * in);
    linear_reference(row.data(), weight.values.data(), bias, in, out, y.data() + r * out);
  }
  return y;
}

std::vector<float> run_linear(ThreadPool& pool, const WeightType& type, const Buffer& packed,
                              const std::byte* x, std::int64_t rows, const float* bias = nullptr) {
  std::vector<float> y(static_cast<std::size_t>(rows * type.out), -77.0F);
  linear(pool, {.weight = {type, packed.data()},
                .dtype = type.format.dtype(),
                .x = x,
                .rows = rows,
                .bias = bias,
                .dst = y.data()});
  return y;
}

class LinearShapesTest : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {};

TEST_P(LinearShapesTest, MatchesReferenceForOddSizes) {
  const auto [dtype, in] = GetParam();
  Random random(static_cast<std::uint64_t>(in));
  for (const std::int64_t out : {1, 5, 63, 64, 65, 129, 1000, 2049}) {
    const test::PackedWeight weight = test::make_weight(random, out, in, dtype);
    const std::vector<float> bias = random.floats(out);
    for (const std::int64_t rows : {1, 2, 3, 7, 16, 63, 64, 65, 130}) {
      if (out * rows > 70'000 && rows != 65) continue;  // two blocks of rows suffice there
      SCOPED_TRACE(::testing::Message() << "out " << out << ", rows " << rows);
      const test::Operand x = test::make_operand(random.floats(rows * in), dtype);
      const float* with_bias = rows % 2 == 1 ? bias.data() : nullptr;
      test::expect_close(
          run_linear(test::pool_of(3), weight.type, weight.packed, x.data(), rows, with_bias),
          reference_of(x, weight.plain, with_bias, rows, in, out),
          test::tolerance(dtype, test::GemmInput::exact, DType::f32));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LinearShapesTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(1, 2, 3, 63, 64, 65, 127, 130, 1026)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_in" +
                                  std::to_string(std::get<1>(case_info.param));
                         });

class LinearTest : public ::testing::TestWithParam<DType> {};

TEST_P(LinearTest, RowHasTheSameBitsInEveryBatchPlaceAndNumberOfThreads) {
  constexpr std::int64_t all_rows = 130;
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1},
                                                                                  {3, 65},
                                                                                  {63, 63},
                                                                                  {72, 200},
                                                                                  {127, 129},
                                                                                  {200, 1000},
                                                                                  {333, 2049},
                                                                                  {1024, 96},
                                                                                  {20000, 64}}) {
    Random random(static_cast<std::uint64_t>(in * out));
    const WeightType type = test::plain_type(in, out, GetParam());
    const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
    const test::Operand x = test::make_operand(random.floats(all_rows * in), GetParam());
    const std::vector<float> expected =
        run_linear(test::pool_of(1), type, weight.packed, x.data(), all_rows);
    for (const int threads : {1, 2, 3, 7}) {
      for (const std::int64_t rows : {1, 2, 3, 7, 8, 16, 17, 33, 63, 64, 65, 130}) {
        for (const std::int64_t first : {0, 1, 63, 129}) {
          if (first + rows > all_rows || (threads > 2 && first == 1)) continue;
          const std::byte* from =
              x.data() + static_cast<std::size_t>(first * in) * size_bytes(GetParam());
          const std::vector<float> part =
              run_linear(test::pool_of(threads), type, weight.packed, from, rows);
          ASSERT_EQ(
              std::memcmp(part.data(), expected.data() + first * out, part.size() * sizeof(float)),
              0)
              << "in " << in << ", out " << out << ": rows " << first << " to " << first + rows - 1
              << " alone on " << threads << " threads differ from the same of " << all_rows;
        }
      }
    }
  }
}

/// Puts back what products follow.
class FollowSchedules {
 public:
  explicit FollowSchedules(GemmSchedules schedules) { follow_gemm_schedules(std::move(schedules)); }
  ~FollowSchedules() { follow_gemm_schedules({}); }
  FollowSchedules(const FollowSchedules&) = delete;
  FollowSchedules& operator=(const FollowSchedules&) = delete;
};

TEST_P(LinearTest, SchedulesChangeNoBit) {
  constexpr std::int64_t in = 300;
  Random random(17);
  for (const std::int64_t out : {64, 200, 1000}) {
    const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
    const WeightType& type = weight.type;
    for (const std::int64_t rows : {1, 6, 50, 140}) {
      const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
      const std::vector<float> own =
          run_linear(test::pool_of(3), type, weight.packed, x.data(), rows);
      for (const StripKernel& kernel : gemm_kernels(type)) {
        const StripTile& tile = kernel.tile;
        for (const std::int64_t strips : {1, 2, 100}) {
          for (const std::int64_t job_rows : {tile.rows, 7 * tile.rows, std::int64_t{1000}}) {
            GemmSchedules schedules;
            schedules.add(
                {.in = in, .out = out, .dtype = GetParam(), .threads = 3, .groups = 1}, 1,
                {.strip = {.tile = tile, .block_depth = 128}, .rows = job_rows, .strips = strips});
            const FollowSchedules followed(std::move(schedules));
            EXPECT_EQ(run_linear(test::pool_of(3), type, weight.packed, x.data(), rows), own)
                << out << " columns, " << rows << " rows, " << strips << " strips and " << job_rows
                << " rows a job";
          }
        }
      }
    }
  }
}

/// A schedule is one of a shape, and holds up to the next number of rows that has one.
TEST(GemmSchedulesTest, TheOneOfTheShapeAndOfTheNextFewerRowsIsFound) {
  const GemmShape shape{.in = 8, .out = 64, .dtype = DType::f32, .threads = 2, .groups = 1};
  GemmSchedules schedules;
  EXPECT_EQ(schedules.find(shape, 2), nullptr);
  schedules.add(shape, 2, {.rows = 20});
  schedules.add(shape, 16, {.rows = 160});
  EXPECT_EQ(schedules.find(shape, 1), nullptr);
  for (const std::int64_t rows : {2, 3, 15}) EXPECT_EQ(schedules.find(shape, rows)->rows, 20);
  for (const std::int64_t rows : {16, 5000}) EXPECT_EQ(schedules.find(shape, rows)->rows, 160);
  for (int which = 0; which < 5; ++which) {
    GemmShape other = shape;
    if (which == 0) other.in = 9;
    if (which == 1) other.out = 65;
    if (which == 2) other.dtype = DType::bf16;
    if (which == 3) other.threads = 3;
    if (which == 4) other.groups = 2;
    EXPECT_EQ(schedules.find(other, 2), nullptr) << which;
  }
}

TEST_P(LinearTest, PanelsCoverTheColumnsOnceAndFitTheWeight) {
  for (const std::int64_t out : {1, 5, 63, 64, 65, 129, 1000, 2049, 50'272}) {
    const PlainLayout& layout = PlainLayout::get(test::plain_type(64, out, GetParam()));
    std::int64_t covered = 0;
    for (std::int64_t panel = 0; panel < layout.num_panels(); ++panel) {
      EXPECT_EQ(layout.first_column(panel), covered);
      EXPECT_GT(layout.panel_columns(panel), 0);
      EXPECT_EQ(layout.panel_offset_bytes(panel) % 64, 0U);
      covered += layout.panel_columns(panel);
    }
    EXPECT_EQ(covered, out);
    const auto plain_bytes = static_cast<std::size_t>(64 * out) * size_bytes(GetParam());
    EXPECT_GE(layout.size_bytes(), plain_bytes);
    EXPECT_EQ(&layout, &PlainLayout::get(test::plain_type(64, out, GetParam())));
  }
}

TEST_P(LinearTest, BlocksSayWhereEachElementLies) {
  Random random(3);
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {3, 65}, {63, 63}, {72, 200}, {127, 129}, {130, 16}, {333, 2049}, {64, 5000}}) {
    SCOPED_TRACE(::testing::Message() << "in " << in << ", out " << out);
    const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
    const PackedBlocks blocks = PlainLayout::get(test::plain_type(in, out, GetParam())).blocks();
    const auto elements = static_cast<std::int64_t>(weight.packed.size() / size_bytes(GetParam()));
    const std::vector<float> packed = test::to_floats(weight.packed.data(), elements, GetParam());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < in * out; ++i) {
      const std::int64_t at = blocks.offset(i % in, i / in);
      ASSERT_LT(at, elements);
      if (packed[static_cast<std::size_t>(at)] != weight.plain.values[static_cast<std::size_t>(i)])
        ++wrong;
    }
    EXPECT_EQ(wrong, 0);
    if (GetParam() == DType::f32) {  // strips are bf16
      EXPECT_FALSE(blocks.is_strips());
    }
    const bool odd_too = fastest_bf16_arithmetic() == Bf16Arithmetic::portable ||
                         fastest_strip_arithmetic() == Bf16Arithmetic::amx;
    if (GetParam() == DType::bf16 && (odd_too || in % 2 == 0)) {
      EXPECT_TRUE(blocks.is_strips());
      EXPECT_EQ(blocks.offset(in - 1, out - 1),
                (out - 1) / 64 * static_cast<std::int64_t>(strip_bytes(in, DType::bf16) / 2) +
                    (in - 1) / 2 * 128 + (out - 1) % 64 * 2 + (in - 1) % 2);
    }
  }
}

/// Whatever kernel dense rows get, others get: oneDNN has slow ones for them, with other bits.
TEST_P(LinearTest, RowsApartGiveTheBitsOfDenseRows) {
  constexpr std::int64_t in = 514;  // no whole steps of tiles
  constexpr std::int64_t out = 200;
  constexpr std::int64_t stride = in + 64;
  Random random(6);
  const WeightType type = test::plain_type(in, out, GetParam());
  const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
  for (const std::int64_t rows : {1, 36, 130}) {
    const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
    const std::size_t width = size_bytes(GetParam());
    std::vector<std::byte> apart(static_cast<std::size_t>(rows * stride) * width, std::byte{255});
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(apart.data() + static_cast<std::size_t>(row * stride) * width,
                  x.data() + static_cast<std::size_t>(row * in) * width, in * width);
    }
    std::vector<float> y(static_cast<std::size_t>(rows * out));
    linear(test::pool_of(2), {.weight = {type, weight.packed.data()},
                              .dtype = GetParam(),
                              .x = apart.data(),
                              .rows = rows,
                              .x_stride = stride,
                              .dst = y.data()});
    EXPECT_EQ(y, run_linear(test::pool_of(2), type, weight.packed, x.data(), rows)) << rows;
  }
}

TEST_P(LinearTest, NoRowsIsNoWork) {
  const WeightType type = test::plain_type(3, 5, GetParam());
  Random random(1);
  const test::PackedWeight weight = test::make_weight(random, 5, 3, GetParam());
  EXPECT_TRUE(run_linear(test::pool_of(2), type, weight.packed, nullptr, 0).empty());
}

TEST_P(LinearTest, StoresInItsOwnTypeAndAccumulates) {
  constexpr std::int64_t in = 65;
  constexpr std::int64_t out = 129;
  constexpr std::int64_t rows = 67;
  Random random(5);
  const WeightType type = test::plain_type(in, out, GetParam());
  const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
  const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
  std::vector<double> expected = reference_of(x, weight.plain, nullptr, rows, in, out);

  const auto elements = static_cast<std::size_t>(rows * out);
  std::vector<std::byte> stored(elements * size_bytes(GetParam()));
  LinearCall call{.weight = {type, weight.packed.data()},
                  .dtype = GetParam(),
                  .x = x.data(),
                  .rows = rows,
                  .dst = stored.data(),
                  .dst_dtype = GetParam()};
  linear(test::pool_of(3), call);
  test::expect_close(test::to_floats(stored.data(), rows * out, GetParam()), expected,
                     test::tolerance(GetParam(), test::GemmInput::exact, GetParam()));

  std::vector<float> residual = random.floats(rows * out, 3.0);
  for (std::size_t i = 0; i < elements; ++i) expected[i] += static_cast<double>(residual[i]);
  call.epilogue = Epilogue::accumulate;
  call.dst = residual.data();
  call.dst_dtype = DType::f32;
  linear(test::pool_of(3), call);
  test::expect_close(residual, expected,
                     test::tolerance(GetParam(), test::GemmInput::exact, DType::f32));
}

TEST_P(LinearTest, GatedPairIsTheProductOfItsHalves) {
  constexpr std::int64_t in = 63;
  Random random(9);
  for (const std::int64_t out : {1, 65, 333}) {
    const test::PackedWeight gate = test::make_weight(random, out, in, GetParam());
    const test::PackedWeight up = test::make_weight(random, out, in, GetParam());
    for (const std::int64_t rows : {1, 66}) {
      const test::Operand x = test::make_operand(random.floats(rows * in, 2.0), GetParam());
      std::vector<double> expected = reference_of(x, up.plain, nullptr, rows, in, out);
      const std::vector<double> gates = reference_of(x, gate.plain, nullptr, rows, in, out);
      const bool clamped = rows == 66;
      constexpr float limit = 1.25F;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] =
            clamped ? gated_reference(Activation::clamped_swiglu, limit, gates[i], expected[i])
                    : expected[i] * gates[i] / (1 + std::exp(-gates[i]));
      }
      std::vector<std::byte> h(expected.size() * size_bytes(GetParam()));
      gated_linear(test::pool_of(3),
                   {.gate = {test::plain_type(in, out, GetParam()), gate.packed.data()},
                    .up = {test::plain_type(in, out, GetParam()), up.packed.data()},
                    .dtype = GetParam(),
                    .x = x.data(),
                    .rows = rows,
                    .activation = clamped ? Epilogue::clamped_gate : Epilogue::silu,
                    .limit = limit,
                    .dst = h.data()});
      test::expect_close(test::to_floats(h.data(), rows * out, GetParam()), expected,
                         test::tolerance(GetParam(), test::GemmInput::exact, GetParam()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LinearTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

}  // namespace
}  // namespace sluice
