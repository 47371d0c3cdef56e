#include "engine/replay/traced_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

using Tokens = std::vector<std::int32_t>;

TracedRequest request(std::int64_t input_tokens, std::vector<std::int64_t> blocks) {
  return {.input_tokens = input_tokens, .output_tokens = 1, .prefix_blocks = std::move(blocks)};
}

std::ptrdiff_t equal_at_the_begin(const Tokens& a, const Tokens& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

constexpr TokenRange range = {.first = 3, .last = 31999};

TEST(TracedPromptTest, EqualBlocksHaveEqualTokens) {
  const Tokens first = traced_prompt(request(1300, {5, 6, 7}), 0, range, 1);
  const Tokens second = traced_prompt(request(1200, {5, 6, 8}), 1, range, 1);
  ASSERT_EQ(first.size(), 1300U);
  ASSERT_EQ(second.size(), 1200U);
  EXPECT_EQ(equal_at_the_begin(first, second), 2 * traced_block_tokens);
  // A block's tokens do not depend on where it stands, nor on how much of it is there.
  const Tokens last = traced_prompt(request(100, {7}), 2, range, 1);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), first.begin() + 2 * traced_block_tokens));
}

TEST(TracedPromptTest, WhatNoBlockNamesIsTheRequestsOwn) {
  const Tokens first = traced_prompt(request(600, {5}), 0, range, 1);
  const Tokens second = traced_prompt(request(600, {5}), 1, range, 1);
  EXPECT_EQ(equal_at_the_begin(first, second), traced_block_tokens);
  EXPECT_EQ(traced_prompt(request(600, {5}), 0, range, 1), first);
  EXPECT_EQ(equal_at_the_begin(traced_prompt(request(600, {5}), 0, range, 2), first), 0);
  // A request's number is no block's.
  EXPECT_EQ(equal_at_the_begin(traced_prompt(request(8, {}), 5, range, 1), first), 0);
}

// By the C++ standard's seed_seq and mt19937_64, written anew in Python.
TEST(TracedPromptTest, ASeedGivesTheSameEverywhere) {
  EXPECT_EQ(traced_prompt(request(4, {5}), 0, range, 1), (Tokens{16628, 27740, 11045, 15778}));
  constexpr std::uint64_t seed = (std::uint64_t{7} << 32) + 1;
  constexpr std::int64_t index = (std::int64_t{3} << 32) + 9;
  EXPECT_EQ(traced_prompt(request(4, {}), index, range, seed),
            (Tokens{24363, 22704, 10171, 11012}));
}

TEST(TracedPromptTest, TokensFillTheRange) {
  const Tokens tokens = traced_prompt(request(2000, {}), 0, {.first = 7, .last = 9}, 1);
  for (const std::int32_t id : {7, 8, 9}) {
    // A third of 2000, and six standard deviations of sqrt(2000 x 1/3 x 2/3) = 21.
    EXPECT_NEAR(static_cast<double>(std::count(tokens.begin(), tokens.end(), id)), 2000.0 / 3, 126);
  }
  EXPECT_EQ(std::count_if(tokens.begin(), tokens.end(), [](int id) { return id < 7 || id > 9; }),
            0);
}

TEST(TracedPromptTest, GivenTokensAreTaken) {
  TracedRequest given = request(2, {});
  given.prompt_token_ids = {40000, 1};
  EXPECT_EQ(traced_prompt(given, 0, range, 1), (Tokens{40000, 1}));
}

}  // namespace
}  // namespace sluice
