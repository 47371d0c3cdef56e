// The fused attention stage and the split pair, qk and sv.
#include "codelets/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codelets/attention/attention_split.h"
#include "codelets/qk/qk.h"
#include "codelets/sv/sv.h"
#include "tests/codelets/attention_cases.h"
#include "tests/codelets/attention_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::AttentionData;

class AttentionTest : public ::testing::TestWithParam<std::tuple<DType, test::AttentionShape>> {
 protected:
  AttentionTest()
      : data_(std::get<1>(GetParam()), std::get<0>(GetParam()), test::ragged_attention) {}

  const AttentionArgs& args() const { return data_.args; }
  DataHandle vectors_handle() const {
    const auto& vectors = data_.vectors;
    return vectors.empty() ? DataHandle()
                           : DataHandle::of_memory(vectors.data(), 4 * vectors.size());
  }
  AttentionData data_;
};

TEST_P(AttentionTest, FusedMatchesReferenceAndReadsVisibleTokensOnly) {
  std::vector<double> expected(data_.num_outputs());
  attention_reference(data_.operands(), expected.data());
  attention_cpu(test::cpu(), data_.operands());
  test::expect_close(data_.outputs(), expected, data_.tolerance());
}

TEST_P(AttentionTest, ScoresMatchReference) {
  std::vector<double> expected(data_.num_scores());
  std::vector<float> scores(expected.size());
  QkOperands operands{.args = &args(),
                      .batch = data_.batch.view(),
                      .q = data_.q.data(),
                      .slab = data_.slab.data(),
                      .scores = scores.data()};
  qk_reference(operands, expected.data());
  qk_cpu(test::cpu(), operands);
  test::expect_close(scores, expected,
                     test::tolerance(args().shape.dtype, test::GemmInput::exact, DType::f32));
}

TEST_P(AttentionTest, ValuesMatchReference) {
  test::Random random(5);
  const std::vector<float> scores =
      random.floats(static_cast<std::int64_t>(data_.num_scores()), 5.0);
  const SvOperands operands{.args = &args(),
                            .batch = data_.batch.view(),
                            .scores = scores.data(),
                            .slab = data_.slab.data(),
                            .out = data_.out.data(),
                            .vectors = data_.vectors.data()};
  std::vector<double> expected(data_.num_outputs());
  sv_reference(operands, expected.data());
  sv_cpu(test::cpu(), operands);
  test::expect_close(data_.outputs(), expected, data_.tolerance());
}

TEST_P(AttentionTest, RowHasTheSameBitsInEveryBatch) {
  attention_cpu(test::cpu(), data_.operands());
  const std::vector<float> together = data_.outputs();
  const DecoderShape& shape = args().shape;
  for (const std::size_t s : {std::size_t{2}, std::size_t{8}, std::size_t{15}}) {
    const BatchSequence& sequence = data_.batch.view().sequences()[s];
    BatchBuilder alone;
    alone.add({.slot = 0,
               .context = sequence.context,
               .tokens = std::vector<std::int32_t>(static_cast<std::size_t>(sequence.num_rows)),
               .pages = data_.batch.view().pages(sequence),
               .sampling = {}},
              BatchBuilder::LogitRows::none);
    const std::vector<std::int32_t> words = alone.build();
    AttentionOperands operands = data_.operands();
    const std::size_t row_bytes =
        static_cast<std::size_t>(shape.q_size()) * size_bytes(shape.dtype);
    operands.batch = BatchView(words.data());
    operands.q += static_cast<std::size_t>(sequence.first_row) * row_bytes;
    std::vector<std::byte> out(static_cast<std::size_t>(sequence.num_rows) * row_bytes);
    operands.out = out.data();
    Workspace workspace;
    attention_cpu({test::pool_of(1), workspace}, operands);
    const auto first = together.begin() + sequence.first_row * shape.q_size();
    EXPECT_EQ(test::to_floats(out.data(), sequence.num_rows * shape.q_size(), shape.dtype),
              std::vector<float>(first, first + sequence.num_rows * shape.q_size()))
        << "sequence " << s;
  }
}

TEST_P(AttentionTest, GivesTheSameBitsAsStarPuTasks) {
  attention_cpu(test::cpu(), data_.operands());
  const std::vector<std::byte> fused = data_.out;
  std::vector<float> scores(data_.num_scores());
  qk_cpu(test::cpu(),
         {&args(), data_.batch.view(), data_.q.data(), data_.slab.data(), scores.data()});
  sv_cpu(test::cpu(), {&args(), data_.batch.view(), scores.data(), data_.slab.data(),
                       data_.out.data(), nullptr, data_.vectors.data()});
  const std::vector<std::byte> split = data_.out;

  test::runtime();
  std::vector<std::byte> fused_task(fused.size());
  std::vector<std::byte> split_task(split.size());
  std::vector<float> scores_task(scores.size());
  {
    const auto& words = data_.batch.words;
    const DataHandle batch = DataHandle::of_memory(words.data(), 4 * words.size());
    const DataHandle q = DataHandle::of_memory(data_.q.data(), data_.q.memory.size());
    const DataHandle slab = DataHandle::of_memory(data_.slab.data(), data_.slab.memory.size());
    const DataHandle fused_out = DataHandle::of_memory(fused_task.data(), fused_task.size());
    const DataHandle split_out = DataHandle::of_memory(split_task.data(), split_task.size());
    const DataHandle stored = DataHandle::of_memory(scores_task.data(), 4 * scores_task.size());
    const DataHandle vectors = vectors_handle();
    submit_attention(args(), {batch, q, slab, DataHandle(), fused_out, vectors});
    submit_qk(args(), {batch, q, slab, DataHandle(), stored});
    submit_sv(args(), {batch, stored, slab, DataHandle(), split_out, vectors});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(fused_task, fused);
  EXPECT_EQ(scores_task, scores);
  EXPECT_EQ(split_task, split);
}

TEST_P(AttentionTest, GivesTheSameBitsAwayFromTheSlab) {
  attention_cpu(test::cpu(), data_.operands());
  const std::vector<std::byte> fused = data_.out;
  std::vector<float> scores(data_.num_scores());
  qk_cpu(test::cpu(),
         {&args(), data_.batch.view(), data_.q.data(), data_.slab.data(), scores.data()});
  sv_cpu(test::cpu(), {&args(), data_.batch.view(), scores.data(), data_.slab.data(),
                       data_.out.data(), nullptr, data_.vectors.data()});
  const std::vector<std::byte> split = data_.out;

  test::runtime();
  std::vector<std::byte> cached = data_.slab.memory;
  const std::vector<std::byte> given = test::take_new_kv(args().shape, data_.batch.view(), cached);
  const std::vector<std::byte> cached_before = cached;
  AttentionArgs away = args();
  away.kv = KvPath::cached_and_new_kv;
  std::vector<std::byte> fused_task(fused.size());
  std::vector<std::byte> split_task(split.size());
  std::vector<float> scores_task(scores.size());
  {
    const auto& words = data_.batch.words;
    const DataHandle batch = DataHandle::of_memory(words.data(), 4 * words.size());
    const DataHandle q = DataHandle::of_memory(data_.q.data(), data_.q.memory.size());
    const DataHandle slab = DataHandle::of_memory(cached.data(), cached.size());
    const DataHandle new_kv = DataHandle::of_memory(given.data(), given.size());
    const DataHandle fused_out = DataHandle::of_memory(fused_task.data(), fused_task.size());
    const DataHandle split_out = DataHandle::of_memory(split_task.data(), split_task.size());
    const DataHandle stored = DataHandle::of_memory(scores_task.data(), 4 * scores_task.size());
    const DataHandle vectors = vectors_handle();
    submit_attention(away, {batch, q, slab, new_kv, fused_out, vectors});
    submit_qk(away, {batch, q, slab, new_kv, stored});
    submit_sv(away, {batch, stored, slab, new_kv, split_out, vectors});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(fused_task, fused);
  EXPECT_EQ(scores_task, scores);
  EXPECT_EQ(split_task, split);
  EXPECT_EQ(cached, cached_before);
}

class LongAttentionTest : public ::testing::TestWithParam<std::tuple<DType, test::AttentionShape>> {
};

// Leaving out one chunk, or one token of it, shows: each has its share of the sum.
TEST_P(LongAttentionTest, ChunksOfAContextAreAllPutTogether) {
  const auto& [dtype, shape] = GetParam();
  AttentionData data(shape, dtype, test::long_attention);
  std::vector<double> expected(data.num_outputs());
  attention_reference(data.operands(), expected.data());
  attention_cpu(test::cpu(), data.operands());
  test::expect_close(data.outputs(), expected, data.tolerance());
  const std::vector<std::byte> together = data.out;
  for (const int threads : {1, 3}) {
    Workspace workspace;
    attention_cpu({test::pool_of(threads), workspace}, data.operands());
    EXPECT_EQ(data.out, together) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LongAttentionTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::ValuesIn(test::small_attention_shapes)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_" +
                                  std::get<1>(case_info.param).name;
                         });

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::ValuesIn(test::attention_shapes)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_" +
                                  std::get<1>(case_info.param).name;
                         });

/// What fused attention and the split pair make of one batch.
class AttentionSinksTest
    : public ::testing::TestWithParam<std::tuple<DType, test::AttentionShape>> {
 protected:
  AttentionSinksTest()
      : data_(std::get<1>(GetParam()), std::get<0>(GetParam()), test::ragged_attention) {}

  std::vector<std::vector<float>> results() {
    attention_cpu(test::cpu(), data_.operands());
    std::vector<std::vector<float>> both = {data_.outputs()};
    std::vector<float> scores(data_.num_scores());
    const BatchView batch = data_.batch.view();
    qk_cpu(test::cpu(), {&data_.args, batch, data_.q.data(), data_.slab.data(), scores.data()});
    sv_cpu(test::cpu(), {&data_.args, batch, scores.data(), data_.slab.data(), data_.out.data(),
                         nullptr, data_.vectors.data()});
    both.push_back(data_.outputs());
    return both;
  }
  std::vector<std::vector<float>> results_with(float sink) {
    data_.set_sinks(std::vector<float>(static_cast<std::size_t>(data_.args.shape.num_heads), sink));
    return results();
  }

  AttentionData data_;
};

TEST_P(AttentionSinksTest, OnesFarBelowTheScoresChangeNoBit) {
  const auto plain = results();
  EXPECT_EQ(results_with(-1e4F), plain);
  EXPECT_EQ(results_with(-std::numeric_limits<float>::infinity()), plain);
}

TEST_P(AttentionSinksTest, OnesFarAboveTheScoresLeaveNothing) {
  for (const std::vector<float>& result : results_with(1e4F))
    EXPECT_EQ(result, std::vector<float>(result.size(), 0.0F));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionSinksTest,
    ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                       ::testing::Values(test::AttentionShape{"head_9_group_1", 3, 3, 9, 0},
                                         test::AttentionShape{"head_64_group_8_window_33", 8, 1, 64,
                                                              33})),
    [](const auto& case_info) {
      return test::name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
    });

/// One head of two elements, two tokens, scale 1 / sqrt(2).
class AttentionHandComputedTest : public ::testing::Test {
 protected:
  AttentionHandComputedTest() {
    args_.shape.dtype = DType::f32;
    args_.shape.num_heads = args_.shape.num_kv_heads = 1;
    args_.shape.head_dim = 2;
    slab_.resize(static_cast<std::size_t>(args_.shape.page_elements()));
    const std::size_t v = slab_.size() / 2;
    slab_[v] = 4;  // V [token, dim padded to 16], of token 0: (4, 0), of token 1: (0, 8)
    slab_[v + 16 + 1] = 8;
  }

  /// With query (1, 5) and keys (0, 0) and (`key`, 0).
  std::vector<float> attend(float key) {
    slab_[1] = key;  // K [dim, token]
    const std::vector<float> q = {1, 5};
    std::vector<float> out(2);
    BatchBuilder builder;
    const std::vector<std::int32_t> one = {0};
    builder.add({.context = 1, .tokens = one, .pages = one, .sampling = {}},
                BatchBuilder::LogitRows::none);
    const std::vector<std::int32_t> words = builder.build();
    attention_cpu(test::cpu(), {.args = &args_,
                                .batch = BatchView(words.data()),
                                .q = reinterpret_cast<const std::byte*>(q.data()),
                                .slab = reinterpret_cast<const std::byte*>(slab_.data()),
                                .out = reinterpret_cast<std::byte*>(out.data()),
                                .vectors = &sink_});
    return out;
  }

  float sink_ = 1.3862944F;  // ln 4
  AttentionArgs args_;

 private:
  std::vector<float> slab_;
};

TEST_F(AttentionHandComputedTest, TwoTokens) {
  // q k / sqrt(2) = (0, ln 3): weights 1/4 and 3/4.
  const std::vector<float> out = attend(1.5536724F);
  EXPECT_NEAR(out[0], 1.0, 1e-6);
  EXPECT_NEAR(out[1], 6.0, 1e-6);
}

TEST_F(AttentionHandComputedTest, TwoTokensAndASink) {
  // exp(score) is 1 and 3, exp(sink) is 4: weights 1/8 and 3/8.
  args_.vectors.attention_sinks = 0;
  const std::vector<float> out = attend(1.5536724F);
  EXPECT_NEAR(out[0], 0.5, 1e-6);
  EXPECT_NEAR(out[1], 3.0, 1e-6);
}

TEST_F(AttentionHandComputedTest, AKeyThatIsNoNumberShows) {
  for (const std::uint32_t bits : {0x7fc00000U, 0x7fffffffU, 0xffffffffU}) {
    for (const float value : attend(std::bit_cast<float>(bits)))
      EXPECT_TRUE(std::isnan(value)) << value << " from " << bits;
  }
}

TEST(ScoreLayoutTest, IsAsLargeAsTheBuilderSays) {
  test::Random random(1);
  const test::RaggedBatch batch = test::make_batch(random, {{0, 3}, {20, 1}}, 5);
  DecoderShape shape;
  shape.num_heads = 3;
  const ScoreLayout layout(shape, batch.view());
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 3);
  EXPECT_EQ(layout.offset(2), 9);
  EXPECT_EQ(layout.offset(3), 18);
  EXPECT_EQ(layout.columns(20), 21);
  shape.sliding_window_tokens = 2;
  const ScoreLayout windowed(shape, batch.view());
  EXPECT_EQ(windowed.offset(3), 3 * (1 + 2 + 2));
  EXPECT_EQ(windowed.columns(20), 2);
}

TEST(AttentionSplitTest, NoSmallerBatchNeedsMoreSlotsThanTheLargestIsGiven) {
  DecoderShape shape;
  shape.num_heads = shape.num_kv_heads = 8;
  constexpr std::int64_t context = 5000;
  for (const auto& [rows, sequences] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {9, 9}, {20, 9}, {200, 9}, {300, 2}}) {
    const std::int64_t given = most_attention_slots_up_to(shape, rows, sequences, context);
    for (std::int64_t fewer = 1; fewer <= sequences; ++fewer) {
      for (std::int64_t some = fewer; some <= rows; ++some) {
        EXPECT_LE(most_attention_amounts(shape, some, fewer, context, LongRuns::as_tiles).slots,
                  given)
            << some << " rows of " << fewer << " sequences";
      }
    }
  }
}

}  // namespace
}  // namespace sluice
