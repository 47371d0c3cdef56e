// sampling_cuda.
#include "codelets/sampling/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "codelets/runtime/runtime.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/sampling_cases.h"

namespace sluice {
namespace {

using test::OnDevice;
using test::Random;
using test::SamplingGoldenTest;

/// What sampling gave, back in host memory.
struct Drawn {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> slot_tokens;
  std::vector<float> probabilities;  ///< [sequences, vocab]
};

/// One sequence a row of settings, each with its logits and its history, of which `prompt_tokens`
/// are the prompt.
Drawn draw(const std::vector<float>& logits, const std::vector<SamplingRow>& rows,
           std::span<const std::int32_t> history = {},
           std::span<const std::int32_t> suppressed = {}, std::size_t prompt_tokens = 1) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t vocab = static_cast<std::int64_t>(logits.size()) / count;
  const std::vector<std::int32_t> page = {0};
  const std::vector<std::int32_t> zero = {0};
  const std::vector<std::int32_t> pages((history.size() + 15) / 16 + 1);
  BatchBuilder builder;
  for (const SamplingRow& row : rows) {
    builder.add({.slot = static_cast<std::int32_t>(count - 1 - builder.num_sequences()),
                 .fresh = true,
                 .tokens = history.empty() ? std::span<const std::int32_t>(zero) : history,
                 .pages = pages,
                 .sampling = row,
                 .suppressed = suppressed,
                 .prompt_tokens = static_cast<std::int32_t>(prompt_tokens)},
                BatchBuilder::LogitRows::last);
  }
  SamplingArgs args{.tag = {},
                    .vocab_size = vocab,
                    .has_logits = true,
                    .track_seen = !history.empty(),
                    .count_output = builder.has_output_penalty()};
  args.tag.num_sequences = count;
  const OnDevice<std::int32_t> words(builder.build());
  const OnDevice<float> given(logits);
  OnDevice<std::uint32_t> seen(static_cast<std::size_t>(count * seen_words(vocab)));
  OnDevice<std::int32_t> counts(static_cast<std::size_t>(count * vocab));
  OnDevice<std::int32_t> slot_tokens(std::vector<std::int32_t>(rows.size(), -1));
  OnDevice<std::int32_t> tokens(std::vector<std::int32_t>(rows.size(), -7));
  OnDevice<float> probabilities(logits.size());
  sampling_cuda(test::gpu(),
                {.args = &args,
                 .batch = BatchView(words.get()),
                 .logits = given.get(),
                 .seen = history.empty() ? nullptr : seen.get(),
                 .output_counts = args.count_output ? counts.get() : nullptr,
                 .slot_tokens = slot_tokens.get(),
                 .tokens = tokens.get()},
                probabilities.get());
  return {tokens.read(), slot_tokens.read(), probabilities.read()};
}

std::vector<std::int32_t> draw_on_cpu(const std::vector<float>& logits,
                                      const std::vector<SamplingRow>& rows) {
  const std::vector<std::int32_t> zero = {0};
  BatchBuilder builder;
  for (const SamplingRow& row : rows) {
    builder.add({.slot = static_cast<std::int32_t>(builder.num_sequences()),
                 .tokens = zero,
                 .pages = zero,
                 .sampling = row},
                BatchBuilder::LogitRows::last);
  }
  const std::vector<std::int32_t> words = builder.build();
  const SamplingArgs args{.tag = {},
                          .vocab_size = static_cast<std::int64_t>(logits.size() / rows.size())};
  std::vector<std::int32_t> slot_tokens(rows.size());
  std::vector<std::int32_t> tokens(rows.size());
  sampling_cpu(test::cpu(), {.args = &args,
                             .batch = BatchView(words.data()),
                             .logits = logits.data(),
                             .slot_tokens = slot_tokens.data(),
                             .tokens = tokens.data()});
  return tokens;
}

std::vector<float> probabilities_of(const std::vector<float>& logits, const SamplingRow& row,
                                    std::span<const std::int32_t> history = {}) {
  return draw(logits, {row}, history).probabilities;
}

class CudaSamplingGoldenTest : public SamplingGoldenTest {};

TEST_F(CudaSamplingGoldenTest, ProbabilitiesAreTransformersOwn) {
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::vector<float> result = probabilities_of(logits(row), settings(row), history(row));
    EXPECT_LT(test::largest_difference(result, expected(row)), 1e-5) << "row " << row;
    for (std::size_t i = 0; i < vocab; ++i) {  // what is masked is masked, not merely small
      EXPECT_TRUE(expected(row)[i] != 0 || result[i] == 0.0F) << "row " << row << ", token " << i;
    }
  }
}

TEST(CudaSamplingTest, SuppressedTokensHaveNoChance) {
  Random random(23);
  for (int trial = 0; trial < 60; ++trial) {
    const test::RandomDraw given = test::random_draw(random, trial);
    std::vector<std::int32_t> suppressed;
    for (std::int32_t id = 0; id + 1 < static_cast<std::int32_t>(given.logits.size()); id += 3)
      suppressed.push_back(id);
    const Drawn drawn =
        draw(given.logits, {given.row}, given.history, suppressed, given.prompt_tokens);
    for (const std::int32_t id : suppressed)
      EXPECT_EQ(drawn.probabilities[static_cast<std::size_t>(id)], 0.0F) << trial;
    test::RandomDraw allowed = given;
    suppress(suppressed, allowed.logits);
    if (test::borders_on_a_token(allowed)) continue;
    EXPECT_LT(test::largest_difference(drawn.probabilities, given.reference(suppressed)), 1e-5)
        << trial;
    SamplingRow greedy = given.row;
    greedy.temperature = 0.0F;
    const std::int32_t best =
        draw(given.logits, {greedy}, given.history, suppressed, given.prompt_tokens).tokens[0];
    EXPECT_FALSE(is_suppressed(suppressed, best)) << trial;
  }
}

TEST(CudaSamplingTest, MatchesReferenceOverRandomSettings) {
  Random random(91);
  int compared = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const test::RandomDraw given = test::random_draw(random, trial);
    const Drawn drawn = draw(given.logits, {given.row}, given.history, {}, given.prompt_tokens);
    const std::vector<float>& result = drawn.probabilities;
    EXPECT_NEAR(std::accumulate(result.begin(), result.end(), 0.0), 1.0, 1e-5) << trial;
    EXPECT_GT(result[static_cast<std::size_t>(drawn.tokens[0])], 0.0F) << trial;
    EXPECT_EQ(drawn.tokens, drawn.slot_tokens);
    if (test::borders_on_a_token(given)) continue;
    ++compared;
    EXPECT_LT(test::largest_difference(result, given.reference()), 1e-5) << trial;
  }
  EXPECT_GT(compared, 250);
}

TEST(CudaSamplingTest, LargeVocabulary) {
  // All sizes of block, and more tokens than one has threads; many share a value.
  Random random(7);
  for (const std::int64_t vocab : {2'049, 40'001}) {
    std::vector<float> logits = random.floats(vocab, 12.0);
    for (std::size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);
    for (const SamplingRow& row :
         {SamplingRow{.temperature = 0.8F, .top_k = 700},
          SamplingRow{.temperature = 1.5F, .top_p = 0.7F},
          SamplingRow{
              .temperature = 1.1F, .top_p = 0.9F, .min_p = 0.01F, .top_k = 1000, .seed_low = 3}}) {
      const Drawn drawn = draw(logits, {row});
      std::vector<float> expected(logits.size());
      token_probabilities(logits, row, {}, expected);
      const std::vector<double> wanted(expected.begin(), expected.end());
      EXPECT_LT(test::largest_difference(drawn.probabilities, wanted), 1e-6) << vocab;
      EXPECT_EQ(drawn.tokens, draw_on_cpu(logits, {row})) << vocab;
    }
  }
}

TEST(CudaSamplingTest, OfEqualsTheLowestIdsStay) {
  // e^0 = 1 each: top-p 0.55 of ten equals keeps six; one larger one and top-k 3 keep all equals.
  const std::vector<float> equals(10, 2.0F);
  std::vector<float> expected(10, 0.0F);
  std::fill_n(expected.begin(), 6, 1.0F / 6);
  EXPECT_EQ(probabilities_of(equals, {.temperature = 1.0F, .top_p = 0.55F}), expected);
  EXPECT_EQ(probabilities_of(equals, {.temperature = 1.0F, .top_p = 0.0F})[0], 1.0F);
  EXPECT_EQ(probabilities_of(equals, {.temperature = 1.0F, .top_k = 3}),
            std::vector<float>(10, 0.1F));
}

TEST(CudaSamplingTest, GreedyTakesTheLowestIdAmongEquals) {
  const std::vector<float> logits = {1, 5, -2, 5, 5, 0};
  EXPECT_EQ(probabilities_of(logits, {}), (std::vector<float>{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(draw(logits, {{}}).tokens, std::vector<std::int32_t>{1});
  const std::vector<float> minus = {-3, -3, -3};
  EXPECT_EQ(probabilities_of(minus, {}), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(probabilities_of({-1, -0.0F, 0.0F}, {}), (std::vector<float>{0, 1, 0}));
  // The penalty comes first: 5 / 1.25 = 4 for token 1, so token 3 is the first of the largest.
  const std::vector<std::int32_t> history = {1};
  EXPECT_EQ(probabilities_of(logits, {.repetition_penalty = 1.25F}, history),
            (std::vector<float>{0, 0, 0, 1, 0, 0}));
}

TEST(CudaSamplingTest, GreedyIsTheCpusOwnOverLargeVocabularies) {
  Random random(23);
  constexpr std::int64_t vocab = 33'000;
  const std::vector<float> logits = random.floats(3 * vocab, 5.0);
  EXPECT_EQ(draw(logits, {{}, {}, {}}).tokens, draw_on_cpu(logits, {{}, {}, {}}));
}

TEST(CudaSamplingTest, NamesWhatIsNotANumber) {
  std::vector<float> logits(100, 1.0F);
  logits[87] = std::numeric_limits<float>::quiet_NaN();
  logits[95] = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0F, 0.7F}) {
    const Drawn drawn = draw(logits, {{.temperature = temperature}, {.temperature = temperature}});
    const cuda::DeviceFailure failure = test::take_device_failure();
    EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
    EXPECT_EQ(failure.row, 1);
    EXPECT_EQ(failure.value, 37);  // of the second fifty
    EXPECT_EQ(drawn.tokens[1], -1);
    EXPECT_GE(drawn.tokens[0], 0);
    EXPECT_EQ(drawn.slot_tokens[0], -1) << "nothing was drawn for the second sequence";
  }
  logits.assign(100, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(draw(logits, {{}}).tokens, std::vector<std::int32_t>{-1});
  const cuda::DeviceFailure failure = test::take_device_failure();
  EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
  EXPECT_EQ(failure.value, -1);
}

TEST(CudaSamplingTest, LeavesOutWhatIsMinusInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {0, -infinity, 0, -infinity};
  EXPECT_EQ(probabilities_of(logits, {.temperature = 1.0F}), (std::vector<float>{0.5, 0, 0.5, 0}));
  EXPECT_EQ(probabilities_of(logits, {.temperature = 1.0F, .top_k = 3}),
            (std::vector<float>{0.5, 0, 0.5, 0}));
  EXPECT_EQ(probabilities_of(logits, {}), (std::vector<float>{1, 0, 0, 0}));
}

TEST(CudaSamplingDrawTest, DrawsTheCpusTokens) {
  // The same number for each (seed, step), and probabilities that are off by 1e-7 of each other:
  // it falls between two tokens' borders about once in 1e5 draws.
  Random random(3);
  constexpr std::int64_t vocab = 97;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  for (std::uint32_t i = 0; i < 2'000; ++i) {
    const std::vector<float> mine = random.floats(vocab, 2.0);
    logits.insert(logits.end(), mine.begin(), mine.end());
    rows.push_back({.temperature = 0.9F,
                    .top_p = i % 2 == 0 ? 0.95F : 1.0F,
                    .top_k = i % 3 == 0 ? 50 : 0,
                    .seed_low = i / 2,
                    .seed_high = i % 5,
                    .step = static_cast<std::int32_t>(i % 7)});
  }
  const std::vector<std::int32_t> on_cpu = draw_on_cpu(logits, rows);
  const std::vector<std::int32_t> drawn = draw(logits, rows).tokens;
  ASSERT_EQ(drawn.size(), on_cpu.size());
  int different = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) different += drawn[i] != on_cpu[i] ? 1 : 0;
  EXPECT_LE(different, 2);
  EXPECT_GT(std::set<std::int32_t>(drawn.begin(), drawn.end()).size(), 90U) << "all the same";
}

std::vector<std::int32_t> sample(const SamplingArgs& args, const std::vector<std::int32_t>& words,
                                 const std::vector<float>& logits, test::SeenState& state) {
  const OnDevice<std::int32_t> batch(words);
  const OnDevice<float> given(logits);
  OnDevice<std::uint32_t> seen(state.seen);
  OnDevice<std::int32_t> counts(state.output_counts);
  OnDevice<std::int32_t> slot_tokens(state.slot_tokens);
  OnDevice<std::int32_t> tokens(static_cast<std::size_t>(args.tag.num_sequences));
  sampling_cuda(test::gpu(), {.args = &args,
                              .batch = BatchView(batch.get()),
                              .logits = logits.empty() ? nullptr : given.get(),
                              .seen = args.track_seen ? seen.get() : nullptr,
                              .output_counts = args.count_output ? counts.get() : nullptr,
                              .slot_tokens = slot_tokens.get(),
                              .tokens = tokens.get()});
  state.seen = seen.read();
  state.output_counts = counts.read();
  state.slot_tokens = slot_tokens.read();
  return tokens.read();
}

TEST(CudaSeenTest, PenalisesPromptAndOutputAcrossIterations) {
  test::expect_penalty_across_iterations(sample);
}

TEST(CudaSeenTest, FreshFlagForgetsTheSlotsLastSequenceOnly) {
  test::expect_fresh_slots_forget(sample);
}

TEST(CudaSeenTest, PromptChunksWithoutLogitsCount) {
  test::expect_chunks_without_logits_count(sample);
}

TEST(CudaOutputCountsTest, FrequencyPenaltyGrowsWithTheOutputAlone) {
  test::expect_output_counts_across_iterations(sample);
}

TEST(CudaOutputCountsTest, PresencePenaltyIsTheSameEachTime) {
  test::expect_presence_counts_once(sample);
}

TEST(CudaOutputCountsTest, CachedTokensThatASlotWasNotFedAreLearnt) {
  test::expect_history_is_learnt(sample);
}

}  // namespace
}  // namespace sluice
