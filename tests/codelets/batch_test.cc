#include "codelets/runtime/batch.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace sluice {
namespace {

std::vector<std::int32_t> to_vector(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}

TEST(BatchTest, RoundTripOfARaggedBatch) {
  const std::vector<std::int32_t> prompt = {11, 12, 13};
  const std::vector<std::int32_t> last_drawn = {-3};
  const std::vector<std::int32_t> more = {7, 8};
  const std::vector<std::int32_t> one_page = {42};
  const std::vector<std::int32_t> three_pages = {5, 0, 9};
  BatchBuilder builder;
  EXPECT_TRUE(builder.empty());
  builder.add({.slot = 4,
               .context = 0,
               .fresh = true,
               .tokens = prompt,
               .pages = one_page,
               .sampling = {.temperature = 0.5F, .top_k = 3, .seed_low = 0xfedcba98, .step = 6}},
              BatchBuilder::LogitRows::last);
  builder.add(
      {.slot = 2, .context = 47, .tokens = last_drawn, .pages = three_pages, .sampling = {}},
      BatchBuilder::LogitRows::none);
  builder.add({.slot = 0, .context = 14, .tokens = more, .pages = one_page, .sampling = {}},
              BatchBuilder::LogitRows::all);
  EXPECT_FALSE(builder.empty());
  EXPECT_EQ(builder.num_sequences(), 3);
  EXPECT_EQ(builder.num_rows(), 6);
  EXPECT_EQ(builder.num_logit_rows(), 3);
  EXPECT_EQ(builder.context_tokens(), 3 + 48 + 16);
  EXPECT_EQ(builder.num_score_columns(), 3 * 3 + 48 + 2 * 16);

  const std::vector<std::int32_t> words = builder.build();
  const BatchView batch(words.data());
  EXPECT_EQ(batch.num_sequences(), 3);
  EXPECT_EQ(batch.num_rows(), 6);
  EXPECT_EQ(batch.num_logit_rows(), 3);
  EXPECT_EQ(batch.num_pages(), 5);
  EXPECT_EQ(to_vector(batch.logit_rows()), (std::vector<std::int32_t>{2, 4, 5}));

  const BatchSequence& first = batch.sequences()[0];
  EXPECT_EQ(first.first_row, 0);
  EXPECT_EQ(first.num_rows, 3);
  EXPECT_EQ(first.context, 0);
  EXPECT_EQ(first.slot, 4);
  EXPECT_EQ(first.fresh, 1);
  EXPECT_EQ(first.logit_row, 0);
  EXPECT_EQ(first.sampling.temperature, 0.5F);
  EXPECT_EQ(first.sampling.top_k, 3);
  EXPECT_EQ(first.sampling.seed_low, 0xfedcba98U);
  EXPECT_EQ(first.sampling.step, 6);
  EXPECT_EQ(to_vector(batch.pages(first)), one_page);

  const BatchSequence& second = batch.sequences()[1];
  EXPECT_EQ(second.first_row, 3);
  EXPECT_EQ(second.fresh, 0);
  EXPECT_EQ(second.logit_row, -1) << "draws nothing";
  EXPECT_EQ(to_vector(batch.pages(second)), three_pages);

  const BatchSequence& third = batch.sequences()[2];
  EXPECT_EQ(third.logit_row, 2) << "draws from its last row";
  EXPECT_EQ(to_vector(batch.pages(third)), one_page);

  struct Row {
    std::int32_t token, position, sequence;
  };
  const std::vector<Row> rows = {{11, 0, 0},  {12, 1, 0}, {13, 2, 0},
                                 {-3, 47, 1}, {7, 14, 2}, {8, 15, 2}};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(batch.rows()[r].token, rows[r].token) << r;
    EXPECT_EQ(batch.rows()[r].position, rows[r].position) << r;
    EXPECT_EQ(batch.rows()[r].sequence, rows[r].sequence) << r;
  }
}

/// Two that share a page, one without cached tokens, and one whose last cached page is half full.
TEST(BatchTest, CachedPagesComeOnceAndSideBySide) {
  const std::vector<std::int32_t> token = {1};
  BatchBuilder builder;
  const auto add = [&](std::int32_t context, const std::vector<std::int32_t>& pages) {
    builder.add({.slot = 0, .context = context, .tokens = token, .pages = pages, .sampling = {}},
                BatchBuilder::LogitRows::none);
  };
  add(32, {9, 4, 7});
  add(0, {3});
  add(24, {9, 2});
  const BatchBuilder::CachedPages cached = builder.cached_pages();
  EXPECT_EQ(cached.pages, (std::vector<std::int32_t>{9, 4, 2}));
  const std::vector<std::int32_t> words = cached.batch.build();
  const BatchView batch(words.data());
  const auto first_pages = [&](std::size_t sequence, std::size_t count) {
    return to_vector(batch.pages(batch.sequences()[sequence]).first(count));
  };
  EXPECT_EQ(first_pages(0, 2), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(first_pages(2, 2), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(batch.num_pages(), 6);
  EXPECT_EQ(batch.sequences()[2].context, 24);
}

TEST(BatchTest, OfNothingIsAHeader) {
  const BatchBuilder builder;
  const std::vector<std::int32_t> words = builder.build();
  const BatchView batch(words.data());
  EXPECT_EQ(batch.num_sequences(), 0);
  EXPECT_EQ(batch.num_rows(), 0);
  EXPECT_TRUE(batch.sequences().empty());
  EXPECT_TRUE(batch.rows().empty());
  EXPECT_TRUE(batch.logit_rows().empty());
  EXPECT_TRUE(batch.pages().empty());
  EXPECT_EQ(builder.context_tokens(), 0);
  EXPECT_FALSE(builder.has_repetition_penalty());
}

TEST(BatchTest, AppendedIsAsAddedInARow) {
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
  const std::vector<std::int32_t> pages = {7, 2};
  const auto add = [&](BatchBuilder& builder, std::int32_t slot, std::size_t count,
                       BatchBuilder::LogitRows logits) {
    builder.add({.slot = slot,
                 .context = 10 * slot,
                 .tokens = std::span(tokens).first(count),
                 .pages = pages,
                 .sampling = {}},
                logits);
  };
  BatchBuilder in_a_row;
  BatchBuilder first;
  BatchBuilder second;
  add(in_a_row, 0, 5, BatchBuilder::LogitRows::none);
  add(in_a_row, 1, 2, BatchBuilder::LogitRows::last);
  add(first, 0, 5, BatchBuilder::LogitRows::none);
  add(first, 1, 2, BatchBuilder::LogitRows::last);
  add(in_a_row, 2, 3, BatchBuilder::LogitRows::all);
  add(in_a_row, 1, 1, BatchBuilder::LogitRows::none);
  add(second, 2, 3, BatchBuilder::LogitRows::all);
  add(second, 1, 1, BatchBuilder::LogitRows::none);
  first.append(second);
  EXPECT_EQ(first.build(), in_a_row.build());
}

TEST(BatchTest, CarriesTheTokensThatEachSequenceMustNotDraw) {
  const std::vector<std::int32_t> token = {0};
  const std::vector<std::int32_t> two = {3, 9};
  const std::vector<std::int32_t> one = {5};
  const auto add = [&](BatchBuilder& builder, std::span<const std::int32_t> suppressed) {
    builder.add({.tokens = token, .pages = token, .sampling = {}, .suppressed = suppressed},
                BatchBuilder::LogitRows::last);
  };
  BatchBuilder builder;
  BatchBuilder more;
  add(builder, two);
  add(builder, {});
  add(more, one);
  add(more, two);
  builder.append(more);
  const std::vector<std::int32_t> words = builder.build();
  const BatchView batch(words.data());
  EXPECT_EQ(batch.words().size(), words.size());
  EXPECT_EQ(to_vector(batch.suppressed(batch.sequences()[0])), two);
  EXPECT_EQ(to_vector(batch.suppressed(batch.sequences()[1])), std::vector<std::int32_t>{});
  EXPECT_EQ(to_vector(batch.suppressed(batch.sequences()[2])), one);
  EXPECT_EQ(to_vector(batch.suppressed(batch.sequences()[3])), two);
  EXPECT_EQ(to_vector(batch.pages(batch.sequences()[3])), token);
}

TEST(BatchTest, CarriesWhatFreshSequencesWithPenaltiesHaveBeenGivenBefore) {
  const std::vector<std::int32_t> token = {0};
  const std::vector<std::int32_t> three = {8, 0, 6};
  const std::vector<std::int32_t> two = {5, 9};
  const auto add = [&](BatchBuilder& builder, std::span<const std::int32_t> history,
                       const SamplingRow& sampling, bool fresh = true) {
    builder.add({.context = static_cast<std::int32_t>(history.size()),
                 .fresh = fresh,
                 .tokens = token,
                 .pages = token,
                 .sampling = sampling,
                 .prompt_tokens = 2,
                 .history = history},
                BatchBuilder::LogitRows::last);
  };
  BatchBuilder builder;
  BatchBuilder more;
  add(builder, three, {.repetition_penalty = 2.0F});
  add(builder, two, {});
  add(builder, two, {.presence_penalty = 1.0F}, false);
  add(more, two, {.frequency_penalty = -1.0F});
  builder.append(more);
  const std::vector<std::int32_t> words = builder.build();
  const BatchView batch(words.data());
  EXPECT_EQ(batch.words().size(), words.size());
  const std::vector<std::vector<std::int32_t>> expected = {three, {}, {}, two};
  for (std::size_t s = 0; s < expected.size(); ++s)
    EXPECT_EQ(to_vector(batch.history(batch.sequences()[s])), expected[s]) << s;
  EXPECT_EQ(batch.sequences()[3].prompt_tokens, 2);
}

TEST(BatchTest, CarriesWhichTokensOfPromptsAreScored) {
  const std::vector<std::int32_t> piece = {4, 5, 6};
  const std::vector<std::int32_t> one = {9};
  const auto add = [&](BatchBuilder& builder, std::span<const std::int32_t> tokens,
                       std::int32_t prompt_logprobs, std::int32_t next_token,
                       BatchBuilder::LogitRows logits) {
    builder.add({.tokens = tokens,
                 .pages = one,
                 .sampling = {},
                 .logprobs = 7,
                 .prompt_logprobs = prompt_logprobs,
                 .next_token = next_token},
                logits);
  };
  BatchBuilder builder;
  BatchBuilder more;
  EXPECT_EQ(builder.wanted_prompt_logprobs(), no_logprobs);
  add(builder, piece, 0, 8, BatchBuilder::LogitRows::none);  // its prompt goes on
  add(builder, piece, no_logprobs, 8, BatchBuilder::LogitRows::none);
  EXPECT_EQ(builder.wanted_logprobs(), no_logprobs) << "nothing is drawn";
  add(more, one, 20, -1, BatchBuilder::LogitRows::last);
  EXPECT_EQ(more.wanted_prompt_logprobs(), no_logprobs) << "no token of the prompt is behind it";
  add(more, piece, 3, -1, BatchBuilder::LogitRows::last);
  builder.append(more);
  EXPECT_EQ(builder.wanted_logprobs(), 7);
  EXPECT_EQ(builder.wanted_prompt_logprobs(), 3);
  EXPECT_EQ(builder.num_scored_rows(), 5);
  EXPECT_EQ(builder.num_head_rows(), 7);
  const std::vector<std::int32_t> words = builder.build();
  const BatchView batch(words.data());
  EXPECT_EQ(batch.words().size(), words.size());
  EXPECT_EQ(to_vector(batch.scored_rows()), (std::vector<std::int32_t>{0, 1, 2, 7, 8}));
  EXPECT_EQ(to_vector(batch.scored_tokens()), (std::vector<std::int32_t>{5, 6, 8, 5, 6}));
  EXPECT_EQ(to_vector(batch.head_rows()), (std::vector<std::int32_t>{6, 9, 0, 1, 2, 7, 8}));
  EXPECT_EQ(batch.sequences()[0].logprobs, no_logprobs) << "draws nothing";
  EXPECT_EQ(batch.sequences()[2].prompt_logprobs, no_logprobs);
  EXPECT_EQ(batch.sequences()[3].prompt_logprobs, 3);
  EXPECT_EQ(to_vector(batch.pages(batch.sequences()[3])), one);
}

TEST(BatchTest, ThrowsWhenLogprobsAreWantedThatNobodyHas) {
  const std::vector<std::int32_t> token = {0};
  const std::vector<std::int32_t> drawn = {-1};
  BatchBuilder builder;
  const auto refused = [&](const BatchBuilder::Sequence& sequence) -> std::string {
    try {
      builder.add(sequence, BatchBuilder::LogitRows::last);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused({.tokens = token, .pages = token, .sampling = {}, .logprobs = 21}),
            "logprobs of 21 tokens are wanted; at most 20 can be had");
  EXPECT_EQ(refused({.tokens = token, .pages = token, .sampling = {}, .prompt_logprobs = -2}),
            "logprobs of -2 tokens are wanted; at most 20 can be had");
  EXPECT_EQ(refused({.tokens = drawn, .pages = token, .sampling = {}, .prompt_logprobs = 0}),
            "prompt logprobs are wanted of a token that is drawn");
  EXPECT_TRUE(builder.empty());
}

TEST(BatchTest, ThrowsWhenPenaltiesDoNotKnowWhatWasThere) {
  const std::vector<std::int32_t> token = {0};
  const std::vector<std::int32_t> unknown = {4, -1};
  BatchBuilder builder;
  const auto refused = [&](const BatchBuilder::Sequence& sequence) -> std::string {
    try {
      builder.add(sequence, BatchBuilder::LogitRows::last);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  BatchBuilder::Sequence sequence{.context = 2,
                                  .fresh = true,
                                  .tokens = token,
                                  .pages = token,
                                  .sampling = {.repetition_penalty = 1.1F}};
  EXPECT_EQ(refused(sequence), "a fresh sequence with a penalty has 2 cached tokens, and names 0");
  sequence.history = unknown;
  EXPECT_EQ(refused(sequence), "a cached token has the id -1");
  sequence.sampling = {.presence_penalty = 0.5F};
  EXPECT_EQ(refused(sequence),
            "a presence or frequency penalty counts output, and the prompt has 0 tokens");
  EXPECT_TRUE(builder.empty());
  sequence.sampling = {};
  EXPECT_EQ(refused(sequence), "") << "without penalties nobody asks";
}

TEST(BatchTest, ThrowsWhenThePagesDoNotCoverTheTokens) {
  const std::vector<std::int32_t> tokens(2);
  const std::vector<std::int32_t> pages = {0, 1};
  BatchBuilder builder;
  builder.add({.context = 30, .tokens = tokens, .pages = pages, .sampling = {}},
              BatchBuilder::LogitRows::last);  // just fits
  try {
    builder.add({.context = 31, .tokens = tokens, .pages = pages, .sampling = {}},
                BatchBuilder::LogitRows::last);
    FAIL() << "33 tokens in 32 places";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "2 pages of 16 tokens cannot hold 31 cached and 2 new tokens");
  }
  EXPECT_EQ(builder.num_sequences(), 1) << "the refused one left nothing behind";
  EXPECT_EQ(builder.num_rows(), 2);
}

TEST(BatchTest, KnowsOfPenaltiesAnywhere) {
  const std::vector<std::int32_t> token = {0};
  BatchBuilder builder;
  builder.add({.tokens = token, .pages = token, .sampling = {}}, BatchBuilder::LogitRows::last);
  EXPECT_FALSE(builder.has_repetition_penalty());
  EXPECT_FALSE(builder.has_output_penalty());
  builder.add({.tokens = token, .pages = token, .sampling = {.repetition_penalty = 0.9F}},
              BatchBuilder::LogitRows::none);
  EXPECT_TRUE(builder.has_repetition_penalty());
  EXPECT_FALSE(builder.has_output_penalty());
  builder.add({.tokens = token,
               .pages = token,
               .sampling = {.presence_penalty = -0.5F},
               .prompt_tokens = 1},
              BatchBuilder::LogitRows::none);
  EXPECT_TRUE(builder.has_output_penalty());
}

}  // namespace
}  // namespace sluice
