#include "codelets/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "tests/codelets/codelet_data.h"
#include "tests/codelets/sampling_cases.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::largest_difference;
using test::Random;
using test::SamplingGoldenTest;
using test::seen_set;

std::vector<float> probabilities_of(std::span<const float> logits, const SamplingRow& row,
                                    std::span<const std::int32_t> history = {},
                                    std::span<const std::int32_t> output = {}) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const std::vector<std::uint32_t> seen = seen_set(history, vocab);
  const std::vector<std::int32_t> counts = test::counts_of(output, vocab);
  std::vector<float> probabilities(logits.size());
  token_probabilities(logits, row,
                      {.seen = history.empty() ? nullptr : seen.data(),
                       .output_counts = output.empty() ? nullptr : counts.data()},
                      probabilities);
  return probabilities;
}

TEST_F(SamplingGoldenTest, ProbabilitiesAreTransformersOwn) {
  ASSERT_EQ(golden_.floats("temperature").size(), num_rows);
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::vector<float> result = probabilities_of(logits(row), settings(row), history(row));
    EXPECT_LT(largest_difference(result, expected(row)), 1e-5) << "row " << row;
    for (std::size_t i = 0; i < vocab; ++i) {  // what is masked is masked, not merely small
      EXPECT_TRUE(expected(row)[i] != 0 || result[i] == 0.0F) << "row " << row << ", token " << i;
    }
  }
}

TEST_F(SamplingGoldenTest, ReferenceIsTransformersOwn) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::vector<double> result =
        token_probabilities_reference(logits(row), settings(row), history(row));
    double largest = 0;
    for (std::size_t i = 0; i < vocab; ++i) {
      largest = std::max(largest, std::abs(result[i] - expected(row)[i]));
    }
    // The settings are f32 here, double there.
    EXPECT_LT(largest, 1e-6) << "row " << row;
  }
}

TEST(SamplingTest, MatchesReferenceOverRandomSettings) {
  Random random(91);
  int compared = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const test::RandomDraw draw = test::random_draw(random, trial);
    const std::vector<float> result =
        probabilities_of(draw.logits, draw.row, draw.history, draw.output());
    EXPECT_NEAR(std::accumulate(result.begin(), result.end(), 0.0), 1.0, 1e-5) << trial;
    if (test::borders_on_a_token(draw)) continue;
    ++compared;
    EXPECT_LT(largest_difference(result, draw.reference()), 1e-5) << trial;
  }
  EXPECT_GT(compared, 250);
}

TEST(SamplingTest, GreedyTakesTheLowestIdAmongEquals) {
  const std::vector<float> logits = {1, 5, -2, 5, 5, 0};
  EXPECT_EQ(probabilities_of(logits, {}), (std::vector<float>{0, 1, 0, 0, 0, 0}));
  const std::vector<float> minus = {-3, -3, -3};
  EXPECT_EQ(probabilities_of(minus, {}), (std::vector<float>{1, 0, 0}));
  // The penalty comes first: 5 / 1.25 = 4 for token 1, so token 3 is the first of the largest.
  const std::vector<std::int32_t> history = {1};
  EXPECT_EQ(probabilities_of(logits, {.repetition_penalty = 1.25F}, history),
            (std::vector<float>{0, 0, 0, 1, 0, 0}));
}

TEST(SamplingTest, OutputPenaltiesAreSubtractedBeforeAllElse) {
  const std::vector<float> logits = {2, 1, 0.5, -1};
  const std::vector<std::int32_t> output = {0, 3, 0};
  // 2 - 2 * 0.5 - 0.25 = 0.75 and -1 - 0.5 - 0.25 = -1.75.
  const SamplingRow greedy{.presence_penalty = 0.25F, .frequency_penalty = 0.5F};
  EXPECT_EQ(probabilities_of(logits, greedy, {}, output), (std::vector<float>{0, 1, 0, 0}));
  // At temperature 0.5: e^1.5, e^2, e^1 and e^-3.5.
  SamplingRow warm = greedy;
  warm.temperature = 0.5F;
  const double sum = std::exp(1.5) + std::exp(2.0) + std::exp(1.0) + std::exp(-3.5);
  const std::vector<double> expected = {std::exp(1.5) / sum, std::exp(2.0) / sum,
                                        std::exp(1.0) / sum, std::exp(-3.5) / sum};
  EXPECT_LT(largest_difference(probabilities_of(logits, warm, {}, output), expected), 1e-6);
  // The repetition penalty comes first: 2 / 4 - 1.25 and -1 * 4 - 0.75.
  const std::vector<std::int32_t> history = {0, 3};
  SamplingRow both = greedy;
  both.repetition_penalty = 4.0F;
  both.temperature = 1.0F;
  const double all = std::exp(-0.75) + std::exp(1.0) + std::exp(0.5) + std::exp(-4.75);
  const std::vector<double> of_both = {std::exp(-0.75) / all, std::exp(1.0) / all,
                                       std::exp(0.5) / all, std::exp(-4.75) / all};
  EXPECT_LT(largest_difference(probabilities_of(logits, both, history, output), of_both), 1e-6);
  // Below 0 they favour what was there: 0.5 + 2.
  const SamplingRow favour{.presence_penalty = -2.0F};
  EXPECT_EQ(probabilities_of(logits, favour, {}, std::vector<std::int32_t>{2}),
            (std::vector<float>{0, 0, 1, 0}));
}

TEST(SamplingTest, ThrowsOnNaN) {
  std::vector<float> logits(50, 1.0F);
  logits[37] = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 0.7F}) {
    try {
      probabilities_of(logits, {.temperature = temperature});
      FAIL() << "NaN has no probability";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("token 37"), std::string::npos) << error.what();
    }
  }
}

TEST(SamplingTest, LeavesOutWhatIsMinusInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {0, -infinity, 0, -infinity};
  EXPECT_EQ(probabilities_of(logits, {.temperature = 1.0F}), (std::vector<float>{0.5, 0, 0.5, 0}));
  EXPECT_EQ(probabilities_of(logits, {}), (std::vector<float>{1, 0, 0, 0}));
}

TEST(SuppressTest, TokenIsFoundInAnAscendingList) {
  const std::vector<std::int32_t> list = {0, 3, 4, 9, 2047};
  for (const std::int32_t token : list) EXPECT_TRUE(is_suppressed(list, token)) << token;
  for (const std::int32_t token : {-1, 1, 2, 5, 8, 10, 2046, 2048})
    EXPECT_FALSE(is_suppressed(list, token)) << token;
  EXPECT_FALSE(is_suppressed({}, 0));
}

TEST(SuppressTest, TakesAwayEveryChanceButHidesNoNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits = {1, 2, nan, 4};
  suppress(std::vector<std::int32_t>{1, 2, 700}, logits);
  EXPECT_EQ(logits[0], 1.0F);
  EXPECT_EQ(logits[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(logits[2]));
  EXPECT_EQ(logits[3], 4.0F);
}

TEST(SuppressTest, ProbabilitiesAreThoseOfTheOtherTokens) {
  Random random(23);
  for (int trial = 0; trial < 100; ++trial) {
    test::RandomDraw draw = test::random_draw(random, trial);
    std::vector<std::int32_t> suppressed;
    for (std::int32_t id = 0; id + 1 < static_cast<std::int32_t>(draw.logits.size()); id += 3)
      suppressed.push_back(id);
    const std::vector<double> expected = draw.reference(suppressed);
    suppress(suppressed, draw.logits);
    const std::vector<float> result =
        probabilities_of(draw.logits, draw.row, draw.history, draw.output());
    for (const std::int32_t id : suppressed)
      EXPECT_EQ(result[static_cast<std::size_t>(id)], 0.0F) << trial;
    if (test::borders_on_a_token(draw)) continue;
    EXPECT_LT(largest_difference(result, expected), 1e-5) << trial;
  }
}

TEST(UniformDrawTest, DependsOnSeedAndStepOnly) {
  SamplingRow row{.seed_low = 7, .seed_high = 1, .step = 3};
  const double drawn = uniform_draw(row);
  row.temperature = 2.0F;
  row.top_k = 5;
  EXPECT_EQ(uniform_draw(row), drawn);
  std::set<double> all;
  for (const std::uint32_t low : {0U, 1U, 7U, 0xffffffffU}) {
    for (const std::uint32_t high : {0U, 1U, 0x80000000U}) {
      for (const std::int32_t step : {0, 1, 2, 1000, 0x7fffffff}) {
        const double u = uniform_draw({.seed_low = low, .seed_high = high, .step = step});
        EXPECT_GE(u, 0.0);
        EXPECT_LT(u, 1.0);
        all.insert(u);
      }
    }
  }
  EXPECT_EQ(all.size(), 4U * 3U * 5U) << "two of them drew the same number";
}

/// Sequences that each draw from the same logits.
std::vector<std::int32_t> draw(std::span<const float> logits, std::span<const SamplingRow> rows,
                               std::span<const std::int32_t> suppressed = {}) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const std::vector<std::int32_t> zero = {0};
  BatchBuilder builder;
  std::vector<float> all_logits;
  for (const SamplingRow& row : rows) {
    builder.add({.slot = static_cast<std::int32_t>(builder.num_sequences()),
                 .tokens = zero,
                 .pages = zero,
                 .sampling = row,
                 .suppressed = suppressed},
                BatchBuilder::LogitRows::last);
    all_logits.insert(all_logits.end(), logits.begin(), logits.end());
  }
  const std::vector<std::int32_t> words = builder.build();
  std::vector<std::int32_t> slot_tokens(rows.size(), -1);
  std::vector<std::int32_t> tokens(rows.size(), -7);
  const SamplingArgs args{.tag = {}, .vocab_size = vocab};
  sampling_cpu(test::cpu(), {.args = &args,
                             .batch = BatchView(words.data()),
                             .logits = all_logits.data(),
                             .slot_tokens = slot_tokens.data(),
                             .tokens = tokens.data()});
  EXPECT_EQ(tokens, slot_tokens);
  return tokens;
}

TEST(SamplingDrawTest, SameSeedAndStepDrawTheSameToken) {
  const std::vector<float> logits = Random(3).floats(97, 1.0);
  std::vector<SamplingRow> rows;
  for (std::uint32_t i = 0; i < 60; ++i) {
    rows.push_back({.temperature = 1.0F,
                    .seed_low = i % 20,
                    .seed_high = 5,
                    .step = static_cast<std::int32_t>(i % 20)});
  }
  const std::vector<std::int32_t> tokens = draw(logits, rows);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(tokens[i], tokens[i + 20]) << i;
  EXPECT_GT(std::set<std::int32_t>(tokens.begin(), tokens.end()).size(), 5U) << "all the same";
  EXPECT_EQ(draw(logits, rows), tokens) << "in a second run";
}

TEST(SamplingDrawTest, SuppressedTokensAreNeverDrawn) {
  const std::vector<float> logits = {9, 7, 8, 1, 8};
  const std::vector<std::int32_t> suppressed = {0, 2};
  EXPECT_EQ(draw(logits, std::vector<SamplingRow>(2), suppressed),
            (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(draw(logits, std::vector<SamplingRow>(2)), (std::vector<std::int32_t>{0, 0}));
  std::vector<SamplingRow> rows;
  for (std::uint32_t seed = 0; seed < 200; ++seed)
    rows.push_back({.temperature = 5.0F, .seed_low = seed});
  const std::vector<std::int32_t> tokens = draw(logits, rows, suppressed);
  EXPECT_EQ(std::set<std::int32_t>(tokens.begin(), tokens.end()),
            (std::set<std::int32_t>{1, 3, 4}));
}

enum class Vary : std::uint8_t { seed, step };

class SamplingFrequencyTest : public ::testing::TestWithParam<Vary> {
 protected:
  /// Pearson's statistic of the counts; tokens of fewer than 5 expected draws share one cell.
  struct ChiSquare {
    double statistic = 0;
    double degrees = -1;
    /// Exceeded by chance about once in ten million tries (six standard deviations).
    double bound() const { return degrees + 6 * std::sqrt(2 * degrees); }
  };
  static ChiSquare chi_square(const std::vector<int>& counts, std::span<const float> probabilities,
                              int draws) {
    ChiSquare result;
    double rare = 0;
    double rare_counted = 0;
    const auto add = [&](double counted, double wanted) {
      result.statistic += (counted - wanted) * (counted - wanted) / wanted;
      ++result.degrees;
    };
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double wanted = static_cast<double>(probabilities[i]) * draws;
      if (wanted >= 5) {
        add(counts[i], wanted);
      } else {
        rare += wanted;
        rare_counted += counts[i];
      }
    }
    if (rare > 0) add(rare_counted, rare);
    return result;
  }
};

TEST_P(SamplingFrequencyTest, MatchTheProbabilities) {
  const std::vector<float> logits = Random(17).floats(97, 2.0);
  const SamplingRow settings{.temperature = 0.9F, .top_p = 0.95F, .top_k = 50};
  constexpr int draws = 20'000;
  constexpr int at_once = 1000;
  std::vector<int> counts(logits.size());
  for (int done = 0; done < draws; done += at_once) {
    std::vector<SamplingRow> rows(at_once, settings);
    for (int i = 0; i < at_once; ++i) {
      SamplingRow& row = rows[static_cast<std::size_t>(i)];
      row.seed_low = GetParam() == Vary::seed ? static_cast<std::uint32_t>(done + i) : 12345U;
      row.step = GetParam() == Vary::step ? done + i : 4;
    }
    for (const std::int32_t token : draw(logits, rows)) ++counts[static_cast<std::size_t>(token)];
  }
  const std::vector<float> probabilities = probabilities_of(logits, settings);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_TRUE(counts[i] == 0 || probabilities[i] > 0) << "token " << i << " was left out";
  }
  const ChiSquare right = chi_square(counts, probabilities, draws);
  EXPECT_GT(right.degrees, 20);
  EXPECT_LT(right.statistic, right.bound());

  SamplingRow warmer = settings;  // a wrong distribution fails
  warmer.temperature = 1.0F;
  const ChiSquare wrong = chi_square(counts, probabilities_of(logits, warmer), draws);
  EXPECT_GT(wrong.statistic, wrong.bound());
}

INSTANTIATE_TEST_SUITE_P(Over, SamplingFrequencyTest, ::testing::Values(Vary::seed, Vary::step),
                         [](const auto& case_info) {
                           return case_info.param == Vary::seed ? "seeds" : "steps";
                         });

std::vector<std::int32_t> sample(const SamplingArgs& args, const std::vector<std::int32_t>& words,
                                 const std::vector<float>& logits, test::SeenState& state) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(args.tag.num_sequences), -7);
  sampling_cpu(test::cpu(),
               {.args = &args,
                .batch = BatchView(words.data()),
                .logits = logits.empty() ? nullptr : logits.data(),
                .seen = args.track_seen ? state.seen.data() : nullptr,
                .output_counts = args.count_output ? state.output_counts.data() : nullptr,
                .slot_tokens = state.slot_tokens.data(),
                .tokens = tokens.data()});
  return tokens;
}

TEST(SeenTest, PenalisesPromptAndOutputAcrossIterations) {
  test::expect_penalty_across_iterations(sample);
}

TEST(SeenTest, FreshFlagForgetsTheSlotsLastSequenceOnly) {
  test::expect_fresh_slots_forget(sample);
}

TEST(SeenTest, PromptChunksWithoutLogitsCount) { test::expect_chunks_without_logits_count(sample); }

TEST(OutputCountsTest, FrequencyPenaltyGrowsWithTheOutputAlone) {
  test::expect_output_counts_across_iterations(sample);
}

TEST(OutputCountsTest, PresencePenaltyIsTheSameEachTime) {
  test::expect_presence_counts_once(sample);
}

TEST(OutputCountsTest, CachedTokensThatASlotWasNotFedAreLearnt) {
  test::expect_history_is_learnt(sample);
}

TEST(SamplingTaskTest, DrawsTheSameTokensAsAStarPuTask) {
  constexpr std::int64_t vocab = 97;
  Random random(19);
  const std::vector<std::int32_t> page = {0};
  BatchBuilder builder;
  for (std::int32_t s = 0; s < 9; ++s) {
    const std::vector<std::int32_t> tokens = {s, 2 * s};
    builder.add({.slot = 8 - s,
                 .fresh = true,
                 .tokens = tokens,
                 .pages = page,
                 .sampling = {.temperature = 0.3F * static_cast<float>(s),
                              .repetition_penalty = s == 2 ? 1.0F : 1.2F,
                              .frequency_penalty = s == 3 ? 0.0F : 0.4F,
                              .seed_low = static_cast<std::uint32_t>(s)},
                 .prompt_tokens = 1},
                s == 4 ? BatchBuilder::LogitRows::none : BatchBuilder::LogitRows::last);
  }
  const std::vector<std::int32_t> words = builder.build();
  const std::vector<float> logits = random.floats(8 * vocab, 3.0);
  struct State {
    std::vector<std::uint32_t> seen = std::vector<std::uint32_t>(9 * seen_words(vocab));
    std::vector<std::int32_t> counts = std::vector<std::int32_t>(9 * vocab);
    std::vector<std::int32_t> slot_tokens = std::vector<std::int32_t>(9, -1);
    std::vector<std::int32_t> tokens = std::vector<std::int32_t>(9, -7);
    bool operator==(const State&) const = default;
  };
  SamplingArgs args{
      .tag = {}, .vocab_size = vocab, .has_logits = true, .track_seen = true, .count_output = true};
  State plain;
  sampling_cpu(test::cpu(), {.args = &args,
                             .batch = BatchView(words.data()),
                             .logits = logits.data(),
                             .seen = plain.seen.data(),
                             .output_counts = plain.counts.data(),
                             .slot_tokens = plain.slot_tokens.data(),
                             .tokens = plain.tokens.data()});
  EXPECT_EQ(plain.tokens[4], -1);
  EXPECT_EQ(plain.slot_tokens[4], -1);

  test::runtime();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    State task;
    {
      const DataHandle batch = DataHandle::of_memory(words.data(), 4 * words.size());
      const DataHandle rows = DataHandle::of_memory(logits.data(), 4 * logits.size());
      const DataHandle seen = DataHandle::of_memory(task.seen.data(), 4 * task.seen.size());
      const DataHandle counts = DataHandle::of_memory(task.counts.data(), 4 * task.counts.size());
      const DataHandle drawn =
          DataHandle::of_memory(task.slot_tokens.data(), 4 * task.slot_tokens.size());
      const DataHandle tokens = DataHandle::of_memory(task.tokens.data(), 4 * task.tokens.size());
      submit_sampling(dtype, args, {batch, rows, seen, counts, drawn, tokens});
    }
    EXPECT_FALSE(run_failure().happened());
    EXPECT_EQ(task.tokens, plain.tokens);
    EXPECT_EQ(task.slot_tokens, plain.slot_tokens);
    EXPECT_EQ(task.seen, plain.seen);
    EXPECT_EQ(task.counts, plain.counts);
  }
}

}  // namespace
}  // namespace sluice
