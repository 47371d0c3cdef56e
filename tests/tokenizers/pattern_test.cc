#include "models/tokenizers/pattern.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

std::vector<std::string> matches(const Pattern& pattern, std::string_view text) {
  std::vector<std::string> out;
  for (const Span& span : pattern.find_all(text)) out.emplace_back(span.of(text));
  return out;
}

std::vector<std::string> matches(const std::string& expression, std::string_view text) {
  return matches(Pattern::regex(expression, "test"), text);
}

using Strings = std::vector<std::string>;
using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Ranges matching_code_points(const Pattern& pattern) {
  Ranges ranges;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    if (pattern.find_all(text).empty()) continue;
    if (!ranges.empty() && ranges.back().second == c - 1) {
      ranges.back().second = c;
    } else {
      ranges.emplace_back(c, c);
    }
  }
  return ranges;
}

TEST(PatternTest, ClassesHoldTheCodePointsThatHuggingFacesDo) {
  std::ifstream file(SLUICE_TEST_DATA_DIR "/tokenizers/data/unicode_classes.json");
  const auto classes = nlohmann::json::parse(file).get<std::map<std::string, Ranges>>();
  ASSERT_EQ(classes.size(), 8U);
  for (const auto& [expression, expected] : classes) {
    EXPECT_EQ(matching_code_points(Pattern::regex(expression, "test")), expected) << expression;
  }
}

TEST(PatternTest, WhiteSpaceIsTheSameInBothPlaces) {
  const Ranges from_pattern = matching_code_points(Pattern::regex(R"(\s)", "test"));
  std::size_t num = 0;
  for (const auto& [first, last] : from_pattern) {
    for (std::uint32_t c = first; c <= last; ++c, ++num) EXPECT_TRUE(is_white_space(c)) << c;
  }
  EXPECT_EQ(num, 25U);
}

TEST(PatternTest, LookAheadLeavesTheLastSpace) {
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+|\S+)", "a   b  "), (Strings{"a", "  ", " ", "b", "  "}));
}

TEST(PatternTest, CaseInsensitiveGroupFoldsLongS) {
  EXPECT_EQ(matches("(?i:'s|'t)", "a's b'S c'\u017F d'x"), (Strings{"'s", "'S", "'\u017F"}));
}

TEST(PatternTest, EmptyMatchesAdvanceByOneCharacter) {
  EXPECT_EQ(matches("x*", "\u00E9xx\u00E9").size(), 3U);  // before, "xx", at the end
  EXPECT_EQ(matches("(?=b)", "abb").size(), 2U);
}

TEST(PatternTest, LiteralIsNoExpression) {
  EXPECT_EQ(matches(Pattern::literal("a.a"), "a.a.a axa"), (Strings{"a.a"}));
}

TEST(PatternTest, DotAndAnchorsAreRubys) {
  EXPECT_EQ(matches("^.+$", "ab\ncd\r"), (Strings{"ab", "cd\r"}));
}

TEST(PatternTest, LongRunsNeedNoDeepStack) {
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").size(), 2U);
  EXPECT_EQ(matches(R"((?:a|b)+)", std::string(100'000, 'a')).size(), 1U);
}

TEST(PatternTest, RunawayBacktrackingIsAnError) {
  EXPECT_THROW(matches(R"((a|aa)+\d)", std::string(200, 'a')), Error);
}

TEST(PatternTest, WhatMeansSomethingElseToPcreIsRefused) {
  for (const char* expression :
       {"[a&&b]", "[a[b]]", "\\h", "\\R", "\\K", "(?m:.)", "(?<name>a)", "(*UCP)", "[\\S]", "[\\W]",
        "\\Qa\\E", "\\", "[]a]", "(?#c)", "\\p", "\\p{Nonsense}", "(", "[a", "a**+)"}) {
    EXPECT_THROW(Pattern::regex(expression, "test"), Error) << expression;
  }
}

TEST(PatternTest, MessageNamesPlaceAndConstruct) {
  try {
    Pattern::regex("[a&&b]", "tokenizer.json.pre_tokenizer");
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("tokenizer.json.pre_tokenizer: "), 0U) << message;
    EXPECT_NE(message.find("&&"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace sluice::tokenizers
