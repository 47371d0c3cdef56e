#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "codelets/logprobs/logprobs.h"
#include "tests/codelets/codelet_data.h"

// What the logprobs are tested with, on every device.
namespace sluice::test {

/// Runs the codelet on host memory: the batch, logits, drawn tokens (none: empty); returns `out`,
/// whose entries that it does not write are `nobody`.
using FindLogprobs = std::function<std::vector<TokenLogprob>(
    const LogprobsArgs& args, const std::vector<std::int32_t>& words,
    const std::vector<float>& logits, const std::vector<std::int32_t>& tokens)>;
constexpr TokenLogprob nobody = {-5, 5};

inline std::size_t num_entries(const LogprobsArgs& args) {
  return static_cast<std::size_t>(args.num_rows * (1 + args.most_likeliest));
}

/// The same tokens, and their logprobs up to f32's rounding.
inline void expect_row(const TokenLogprob* found, const std::vector<ReferenceLogprob>& expected,
                       const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].token, expected[i].token) << what << ", entry " << i;
    if (std::isinf(expected[i].logprob)) {
      ASSERT_EQ(found[i].logprob, expected[i].logprob) << what << ", entry " << i;
    } else {
      ASSERT_NEAR(found[i].logprob, expected[i].logprob, 1e-6 * (1 + std::abs(expected[i].logprob)))
          << what << ", entry " << i;
    }
  }
}

/// Logits that share values, some of them -inf, and differ by as much as a model's do.
inline std::vector<float> logits_with_ties(Random& random, std::int64_t vocab) {
  std::vector<float> logits = random.floats(vocab, 30.0);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i % 2 == 0) logits[i] = std::round(logits[i]);
    if (i % 5 == 1) logits[i] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

/// Sequences that draw or not, and ask for 0 to 20 or nothing.
inline void expect_those_of_drawn_tokens(const FindLogprobs& find, std::int64_t vocab) {
  Random random(31);
  const std::vector<std::int32_t> given = {0, 0};
  const std::vector<std::int32_t> asked = {0, no_logprobs, 20, 5, 1, 20};
  BatchBuilder builder;
  std::vector<std::int32_t> tokens;
  for (std::size_t s = 0; s < asked.size(); ++s) {
    builder.add({.tokens = given, .pages = given, .sampling = {}, .logprobs = asked[s]},
                s == 5 ? BatchBuilder::LogitRows::none : BatchBuilder::LogitRows::last);
    tokens.push_back(s == 4 ? -1 : static_cast<std::int32_t>(random.below(vocab)));
  }
  tokens[2] = 0;
  tokens[3] = static_cast<std::int32_t>(vocab) - 1;
  std::vector<std::vector<float>> rows;
  std::vector<float> logits;
  for (std::int64_t r = 0; r < builder.num_logit_rows(); ++r) {
    const std::vector<float>& row = rows.emplace_back(logits_with_ties(random, vocab));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  EXPECT_EQ(builder.wanted_logprobs(), 20);
  const LogprobsArgs args{.tag = {},
                          .vocab_size = vocab,
                          .most_likeliest = builder.wanted_logprobs(),
                          .num_rows = builder.num_sequences()};
  const std::vector<TokenLogprob> found = find(args, builder.build(), logits, tokens);
  ASSERT_EQ(found.size(), num_entries(args));
  for (std::size_t s = 0; s < asked.size(); ++s) {
    const TokenLogprob* row = found.data() + s * 21;
    std::size_t written = 0;  // nothing of the fifth, whose token failed, and of the last
    if (asked[s] >= 0 && s < 4) {
      written = 1 + static_cast<std::size_t>(asked[s]);
      expect_row(row, logprobs_reference(rows[s], tokens[s], asked[s]),
                 fmt::format("vocabulary of {}, sequence {}", vocab, s));
    }
    for (; written < 21; ++written) EXPECT_EQ(row[written], nobody) << s << ", " << written;
  }
}

/// The second of two blocks of a prompt's rows, beside those of another sequence.
inline void expect_those_of_given_tokens(const FindLogprobs& find, std::int64_t vocab) {
  Random random(32);
  std::vector<std::int32_t> prompt(9);
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random.below(vocab));
  const std::vector<std::int32_t> other = {0, 0, 0};
  const std::int32_t behind = static_cast<std::int32_t>(vocab) - 1;
  BatchBuilder builder;
  builder.add({.tokens = other, .pages = other, .sampling = {}}, BatchBuilder::LogitRows::last);
  builder.add({.tokens = prompt,
               .pages = other,
               .sampling = {},
               .prompt_logprobs = 3,
               .next_token = behind},
              BatchBuilder::LogitRows::none);
  builder.add({.tokens = other, .pages = other, .sampling = {}, .prompt_logprobs = 0},
              BatchBuilder::LogitRows::last);
  ASSERT_EQ(builder.num_scored_rows(), 9 + 2);
  const LogprobsArgs args{.tag = {},
                          .vocab_size = vocab,
                          .most_likeliest = builder.wanted_prompt_logprobs(),
                          .of = LogprobsOf::given_tokens,
                          .first_row = 7,
                          .num_rows = 4};
  std::vector<std::vector<float>> rows;
  std::vector<float> logits;
  for (std::int64_t r = 0; r < args.num_rows; ++r) {
    const std::vector<float>& row = rows.emplace_back(logits_with_ties(random, vocab));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const std::vector<TokenLogprob> found = find(args, builder.build(), logits, {});
  ASSERT_EQ(found.size(), num_entries(args));
  const std::vector<std::int32_t> tokens = {prompt[8], behind, 0, 0};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    expect_row(found.data() + 4 * r, logprobs_reference(rows[r], tokens[r], r < 2 ? 3 : 0),
               fmt::format("vocabulary of {}, row {}", vocab, r));
    for (std::size_t i = 1; r >= 2 && i < 4; ++i) EXPECT_EQ(found[4 * r + i], nobody) << r;
  }
}

/// One sequence that draws `token` and asks for `count` likeliest ones.
inline std::vector<TokenLogprob> logprobs_of(const FindLogprobs& find,
                                             const std::vector<float>& logits, std::int32_t token,
                                             std::int32_t count) {
  const std::vector<std::int32_t> zero = {0};
  BatchBuilder builder;
  builder.add({.tokens = zero, .pages = zero, .sampling = {}, .logprobs = count},
              BatchBuilder::LogitRows::last);
  const LogprobsArgs args{.tag = {},
                          .vocab_size = static_cast<std::int64_t>(logits.size()),
                          .most_likeliest = count,
                          .num_rows = 1};
  return find(args, builder.build(), logits, {token});
}

/// Logarithms of quarters and eighths, by hand.
inline void expect_those_worked_by_hand(const FindLogprobs& find) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float ln2 = std::log(2.0F);
  // Weights 2, 4, 1, 0 and 1 of 8; the third and the fifth are equal.
  const std::vector<float> logits = {ln2, 2 * ln2, 0.0F, -infinity, -0.0F};
  const std::vector<TokenLogprob> found = logprobs_of(find, logits, 4, 7);
  const std::vector<TokenLogprob> expected = {{4, -3 * ln2},   {1, -ln2},      {0, -2 * ln2},
                                              {2, -3 * ln2},   {4, -3 * ln2},  {3, -infinity},
                                              {-1, -infinity}, {-1, -infinity}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].token, expected[i].token) << i;
    if (std::isinf(expected[i].logprob)) {
      EXPECT_EQ(found[i].logprob, expected[i].logprob) << i;
    } else {
      EXPECT_NEAR(found[i].logprob, expected[i].logprob, 1e-6) << i;
    }
  }
  EXPECT_EQ(logprobs_of(find, logits, 3, 0), (std::vector<TokenLogprob>{{3, -infinity}}));
  EXPECT_EQ(logprobs_of(find, {-100.0F}, 0, 1), (std::vector<TokenLogprob>{{0, 0}, {0, 0}}));
  // All alike, in order of their ids.
  const std::vector<TokenLogprob> alike = logprobs_of(find, std::vector<float>(64, 3.5F), 9, 20);
  for (std::size_t i = 1; i < alike.size(); ++i) {
    EXPECT_EQ(alike[i].token, static_cast<std::int32_t>(i) - 1);
    EXPECT_NEAR(alike[i].logprob, -6 * ln2, 1e-6);
  }
}

}  // namespace sluice::test
