// Sizes of real models, checked where they can be afforded in double precision.
#include <gtest/gtest.h>

#include <cstring>

#include "codelets/kernels/linear.h"
#include "codelets/qk/qk.h"
#include "codelets/runtime/runtime.h"
#include "codelets/sv/sv.h"
#include "codelets/weights/plain.h"
#include "tests/codelets/attention_data.h"

namespace sluice {
namespace {

class LargeTest : public ::testing::TestWithParam<DType> {};

TEST_P(LargeTest, LinearOf4096By4096MatchesSampledEntries) {
  constexpr std::int64_t size = 4096;
  constexpr std::int64_t rows = 70;
  test::Random random(101);
  const test::PackedWeight weight = test::make_weight(random, size, size, GetParam());
  const test::Operand x = test::make_operand(random.floats(rows * size, 2.0), GetParam());
  std::vector<float> y(static_cast<std::size_t>(rows * size));
  LinearCall call{
      .weight = weight.weight(), .dtype = GetParam(), .x = x.data(), .rows = rows, .dst = y.data()};
  linear(test::pool_of(3), call);
  std::vector<float> result;
  std::vector<double> expected;
  for (int sample = 0; sample < 4000; ++sample) {
    const std::int64_t r = sample % rows;
    const std::int64_t o = sample < 200 ? size - 1 - sample % 64 : random.below(size);
    double sum = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      sum += static_cast<double>(weight.plain.values[static_cast<std::size_t>(o * size + i)]) *
             static_cast<double>(x.values[static_cast<std::size_t>(r * size + i)]);
    }
    result.push_back(y[static_cast<std::size_t>(r * size + o)]);
    expected.push_back(sum);
  }
  test::expect_close(result, expected,
                     test::tolerance(GetParam(), test::GemmInput::exact, DType::f32));

  std::vector<float> alone(static_cast<std::size_t>(size));
  for (const std::int64_t r : {0, 41, 63, 64, 69}) {
    call.x = x.data() + static_cast<std::size_t>(r * size) * size_bytes(GetParam());
    call.rows = 1;
    call.dst = alone.data();
    linear(test::pool_of(1), call);
    EXPECT_EQ(std::memcmp(alone.data(), y.data() + r * size, alone.size() * sizeof(float)), 0)
        << "row " << r << " alone has other bits";
  }
}

TEST_P(LargeTest, LinearOfManyColumnsHasTheSameBitsForOneRow) {
  constexpr std::int64_t in = 520;
  constexpr std::int64_t out = 32'003;
  constexpr std::int64_t rows = 66;
  test::Random random(103);
  const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
  const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
  std::vector<float> y(static_cast<std::size_t>(rows * out));
  LinearCall call{
      .weight = weight.weight(), .dtype = GetParam(), .x = x.data(), .rows = rows, .dst = y.data()};
  linear(test::pool_of(2), call);
  std::vector<float> alone(static_cast<std::size_t>(out));
  for (const std::int64_t r : {0, 64, 65}) {
    call.x = x.data() + static_cast<std::size_t>(r * in) * size_bytes(GetParam());
    call.rows = 1;
    call.dst = alone.data();
    linear(test::pool_of(3), call);
    EXPECT_EQ(std::memcmp(alone.data(), y.data() + r * out, alone.size() * sizeof(float)), 0)
        << "row " << r;
  }
}

TEST_P(LargeTest, AttentionOverThreeThousandTokensMatchesReference) {
  for (const std::int64_t window : {0, 1000}) {
    DecoderShape shape;
    shape.dtype = GetParam();
    shape.num_heads = 8;
    shape.num_kv_heads = 2;
    shape.head_dim = 128;
    shape.sliding_window_tokens = window;
    test::AttentionData data(shape, {{2999, 1}, {2900, 37}, {0, 3}, {3000, 16}, {1023, 1}});
    std::vector<double> expected(data.num_outputs());
    attention_reference(data.operands(), expected.data());
    attention_cpu(test::cpu(), data.operands());
    test::expect_close(data.outputs(), expected, data.tolerance());

    std::vector<float> scores(data.num_scores());
    qk_cpu(test::cpu(),
           {&data.args, data.batch.view(), data.q.data(), data.slab.data(), scores.data()});
    sv_cpu(test::cpu(),
           {&data.args, data.batch.view(), scores.data(), data.slab.data(), data.out.data()});
    test::expect_close(data.outputs(), expected, data.tolerance());
  }
}

TEST_P(LargeTest, AttentionOfALongPromptMatchesReference) {
  DecoderShape shape;
  shape.dtype = GetParam();
  shape.num_heads = 3;
  shape.num_kv_heads = 1;
  shape.head_dim = 64;
  test::AttentionData data(shape, {{0, 701}, {33, 1}});
  std::vector<double> expected(data.num_outputs());
  attention_reference(data.operands(), expected.data());
  attention_cpu(test::cpu(), data.operands());
  test::expect_close(data.outputs(), expected, data.tolerance());
}

INSTANTIATE_TEST_SUITE_P(DTypes, LargeTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

}  // namespace
}  // namespace sluice
