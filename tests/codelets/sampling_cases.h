#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codelets/sampling/sampling.h"
#include "tests/codelets/codelet_data.h"
#include "tests/support/golden.h"

// What sampling is tested with, on every device.
namespace sluice::test {

inline std::vector<std::uint32_t> seen_set(std::span<const std::int32_t> history,
                                           std::int64_t vocab) {
  std::vector<std::uint32_t> seen(static_cast<std::size_t>(seen_words(vocab)));
  for (const std::int32_t token : history) {
    seen[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
  }
  return seen;
}

inline std::vector<std::int32_t> counts_of(std::span<const std::int32_t> output,
                                           std::int64_t vocab) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(vocab));
  for (const std::int32_t token : output) ++counts[static_cast<std::size_t>(token)];
  return counts;
}

inline double largest_difference(std::span<const float> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

/// The rows of sampling.safetensors.
class SamplingGoldenTest : public ::testing::Test {
 protected:
  static constexpr std::size_t num_rows = 24;
  static constexpr std::size_t vocab = 97;
  static constexpr std::size_t longest_history = 31;

  SamplingRow settings(std::size_t row) const {
    return {.temperature = golden_.floats("temperature").at(row),
            .top_p = golden_.floats("top_p").at(row),
            .min_p = golden_.floats("min_p").at(row),
            .repetition_penalty = golden_.floats("repetition_penalty").at(row),
            .top_k = golden_.ints("top_k").at(row)};
  }
  std::vector<float> logits(std::size_t row) const {
    const std::vector<float> all = golden_.floats("logits");
    return {all.begin() + static_cast<std::ptrdiff_t>(row * vocab),
            all.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocab)};
  }
  std::vector<std::int32_t> history(std::size_t row) const {
    const std::vector<std::int32_t> all = golden_.ints("history");
    std::vector<std::int32_t> ids(
        all.begin() + static_cast<std::ptrdiff_t>(row * longest_history),
        all.begin() + static_cast<std::ptrdiff_t>((row + 1) * longest_history));
    std::erase(ids, -1);
    return ids;
  }
  /// Transformers' own, computed in double.
  std::vector<double> expected(std::size_t row) const {
    const std::vector<double> all = golden_.doubles("probabilities_f64");
    return {all.begin() + static_cast<std::ptrdiff_t>(row * vocab),
            all.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocab)};
  }

  GoldenFile golden_{data_folder() + "/golden", "sampling.safetensors"};
};

/// Logits and settings as random as they come.
struct RandomDraw {
  std::vector<float> logits;
  SamplingRow row;
  std::vector<std::int32_t> history;  ///< prompt and output
  std::size_t prompt_tokens;

  std::span<const std::int32_t> output() const { return std::span(history).subspan(prompt_tokens); }
  std::vector<double> reference(std::span<const std::int32_t> suppressed = {}) const {
    return token_probabilities_reference(logits, row, history, suppressed, output());
  }
};
inline RandomDraw random_draw(Random& random, int trial) {
  const std::int64_t vocab = 1 + random.below(300);
  const std::vector<float> logits = random.floats(vocab, 8.0);
  SamplingRow row;
  row.temperature = static_cast<float>(0.3 + 2 * random.uniform());
  row.top_p = trial % 3 == 0 ? 1.0F : static_cast<float>(random.uniform());
  row.min_p = trial % 4 == 0 ? static_cast<float>(random.uniform() * 0.5) : 0.0F;
  row.top_k = static_cast<std::int32_t>(trial % 2 == 0 ? random.below(vocab + 20) : 0);
  row.repetition_penalty = trial % 5 == 0 ? 1.3F : 1.0F;
  std::vector<std::int32_t> history(40);
  for (std::int32_t& token : history) token = static_cast<std::int32_t>(random.below(vocab));
  if (trial % 7 < 3) row.presence_penalty = static_cast<float>(4 * random.uniform() - 2);
  if (trial % 7 > 1 && trial % 7 < 5)
    row.frequency_penalty = static_cast<float>(4 * random.uniform() - 2);
  return {logits, row, history, static_cast<std::size_t>(1 + random.below(40))};
}

/// A token's threshold lies within rounding: it may fall on either side.
inline bool borders_on_a_token(const RandomDraw& draw) {
  const SamplingRow& row = draw.row;
  RandomDraw looser = draw;
  looser.row.top_p = row.top_p < 1.0F ? row.top_p * 1.0001F : 1.0F;
  looser.row.min_p = row.min_p * 0.9999F;
  RandomDraw tighter = draw;
  tighter.row.top_p = row.top_p < 1.0F ? row.top_p * 0.9999F : 1.0F;
  tighter.row.min_p = row.min_p * 1.0001F;
  return looser.reference() != tighter.reference();
}

/// A running batch with penalties, from one iteration to the next. Memory that someone else left
/// behind: the fresh flag must not rely on zeros.
struct SeenState {
  static constexpr std::int64_t vocab = 40;
  static constexpr std::int64_t slots = 3;
  std::vector<std::uint32_t> seen =
      std::vector<std::uint32_t>(static_cast<std::size_t>(slots * seen_words(vocab)), 0xffffffffU);
  std::vector<std::int32_t> output_counts = std::vector<std::int32_t>(slots * vocab, 77);
  std::vector<std::int32_t> slot_tokens = std::vector<std::int32_t>(slots, -1);
};

struct SeenSequence {
  std::int32_t slot;
  bool fresh;
  std::vector<std::int32_t> tokens;
  bool draws;
  std::int32_t context = 0;
  std::vector<std::int32_t> history = {};
  std::int32_t prompt_tokens = 1;
};
/// So strong that no seen token with a positive logit wins.
constexpr SamplingRow strong_repetition_penalty = {.repetition_penalty = 1000.0F};

/// Runs the codelet on host memory: batch, logits (none: empty), state, which it updates; returns
/// the tokens.
using Sample = std::function<std::vector<std::int32_t>(
    const SamplingArgs& args, const std::vector<std::int32_t>& words,
    const std::vector<float>& logits, SeenState& state)>;

/// Greedy with penalties.
inline std::vector<std::int32_t> iterate(const Sample& sample, SeenState& state,
                                         const std::vector<SeenSequence>& sequences,
                                         const SamplingRow& row = strong_repetition_penalty) {
  BatchBuilder builder;
  const std::vector<std::int32_t> pages = {0};
  bool any = false;
  for (const SeenSequence& sequence : sequences) {
    any = any || sequence.draws;
    builder.add({.slot = sequence.slot,
                 .context = sequence.context,
                 .fresh = sequence.fresh,
                 .tokens = sequence.tokens,
                 .pages = pages,
                 .sampling = row,
                 .prompt_tokens = sequence.prompt_tokens,
                 .history = sequence.history},
                sequence.draws ? BatchBuilder::LogitRows::last : BatchBuilder::LogitRows::none);
  }
  std::vector<float> logits;  // 1, 0.99, 0.98...: the lowest id without a penalty wins
  for (std::int64_t r = 0; r < builder.num_logit_rows(); ++r) {
    for (std::int64_t i = 0; i < SeenState::vocab; ++i) {
      logits.push_back(1.0F - 0.01F * static_cast<float>(i));
    }
  }
  SamplingArgs args{.tag = {},
                    .vocab_size = SeenState::vocab,
                    .has_logits = any,
                    .track_seen = builder.has_repetition_penalty(),
                    .count_output = builder.has_output_penalty()};
  args.tag.num_sequences = builder.num_sequences();
  return sample(args, builder.build(), logits, state);
}

inline void expect_penalty_across_iterations(const Sample& sample) {
  SeenState state;
  EXPECT_EQ(
      iterate(sample, state, {{.slot = 1, .fresh = true, .tokens = {0, 2, 33, 2}, .draws = true}}),
      std::vector<std::int32_t>{1});
  // -2: the token that slot 1 drew last.
  for (const std::int32_t expected : {3, 4, 5}) {
    EXPECT_EQ(iterate(sample, state, {{.slot = 1, .fresh = false, .tokens = {-2}, .draws = true}}),
              std::vector<std::int32_t>{expected});
    EXPECT_EQ(state.slot_tokens[1], expected);
  }
}

inline void expect_fresh_slots_forget(const Sample& sample) {
  SeenState state;
  iterate(sample, state,
          {{.slot = 0, .fresh = true, .tokens = {0, 1}, .draws = true},
           {.slot = 2, .fresh = true, .tokens = {0}, .draws = true}});
  EXPECT_EQ(state.slot_tokens, (std::vector<std::int32_t>{2, -1, 1}));
  EXPECT_EQ(iterate(sample, state,
                    {{.slot = 2, .fresh = false, .tokens = {-3}, .draws = true},
                     {.slot = 0, .fresh = true, .tokens = {5}, .draws = true}}),
            (std::vector<std::int32_t>{2, 0}));
}

inline void expect_chunks_without_logits_count(const Sample& sample) {
  SeenState state;
  EXPECT_EQ(iterate(sample, state, {{.slot = 0, .fresh = true, .tokens = {0, 1}, .draws = false}}),
            std::vector<std::int32_t>{-1});
  EXPECT_EQ(state.slot_tokens[0], -1) << "nothing was drawn";
  EXPECT_EQ(iterate(sample, state,
                    {{.slot = 0, .fresh = false, .tokens = {3}, .draws = false},
                     {.slot = 1, .fresh = true, .tokens = {0}, .draws = true}}),
            (std::vector<std::int32_t>{-1, 1}));
  EXPECT_EQ(iterate(sample, state, {{.slot = 0, .fresh = false, .tokens = {2, 39}, .draws = true}}),
            std::vector<std::int32_t>{4});
}

/// Logits fall by 0.01 a token, a token of the output by 0.016 each time.
inline void expect_output_counts_across_iterations(const Sample& sample) {
  const SamplingRow row{.frequency_penalty = 0.016F};
  SeenState state;
  // Tokens of the prompt count for nothing, in however many pieces it comes.
  EXPECT_EQ(
      iterate(sample, state,
              {{.slot = 1, .fresh = true, .tokens = {0, 0, 5}, .draws = false, .prompt_tokens = 5}},
              row),
      std::vector<std::int32_t>{-1});
  EXPECT_EQ(iterate(sample, state,
                    {{.slot = 1,
                      .fresh = false,
                      .tokens = {1, 0},
                      .draws = true,
                      .context = 3,
                      .prompt_tokens = 5}},
                    row),
            std::vector<std::int32_t>{0});
  // Of 0: 1, 0.984, 0.968...; of 1: 0.99, 0.974...; of 2: 0.98, 0.964; 0.97 and 0.96: in order.
  std::int32_t context = 5;
  for (const std::int32_t expected : {1, 0, 2, 1, 3, 0, 2, 4}) {
    EXPECT_EQ(iterate(sample, state,
                      {{.slot = 1,
                        .fresh = false,
                        .tokens = {-2},
                        .draws = true,
                        .context = context++,
                        .prompt_tokens = 5}},
                      row),
              std::vector<std::int32_t>{expected})
        << "behind " << context << " tokens";
  }
  EXPECT_EQ(state.output_counts[0], 77) << "of a slot that nobody has";
}

inline void expect_presence_counts_once(const Sample& sample) {
  const SamplingRow row{.presence_penalty = 0.025F};
  SeenState state;
  const auto draw = [&](const SeenSequence& sequence) {
    return iterate(sample, state, {sequence}, row).at(0);
  };
  // Computed again from the start: 1 of the prompt, and outputs 0, 0, 2. 0 has 0.975, 1 has 0.99.
  EXPECT_EQ(draw({.slot = 0, .fresh = true, .tokens = {1, 0, 0, 2}, .draws = true}), 1);
  // 0 and 1 have been twice and once: 0.975 and 0.965. 2 has 0.955, 3 has 0.97.
  EXPECT_EQ(draw({.slot = 0, .fresh = false, .tokens = {-1}, .draws = true, .context = 4}), 0);
}

/// Cached tokens that the slot has not been fed, of a prefix that others have computed.
inline void expect_history_is_learnt(const Sample& sample) {
  SeenState state;
  EXPECT_EQ(iterate(sample, state,
                    {{.slot = 2,
                      .fresh = true,
                      .tokens = {3},
                      .draws = true,
                      .context = 3,
                      .history = {0, 2, 1}}}),
            std::vector<std::int32_t>{4});
  const SamplingRow row{.presence_penalty = 0.015F};
  EXPECT_EQ(iterate(sample, state,
                    {{.slot = 0,
                      .fresh = true,
                      .tokens = {2},
                      .draws = true,
                      .context = 3,
                      .history = {1, 0, 0},
                      .prompt_tokens = 2}},
                    row),
            std::vector<std::int32_t>{1})  // 0 has 0.985
      << "the first two are the prompt's";
}

}  // namespace sluice::test
