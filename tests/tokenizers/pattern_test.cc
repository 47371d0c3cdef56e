#include "models/tokenizers/pattern.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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

/// FNV-1a of "first-last,first-last".
std::string checksum(const Ranges& ranges) {
  std::string text;
  for (const auto& [first, last] : ranges)
    text += (text.empty() ? "" : ",") + std::to_string(first) + "-" + std::to_string(last);
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3U;
  return fmt::format("{:016x}", hash);
}

/// The code points that the matches in a text of many cover.
Ranges covered_code_points(const Pattern& pattern, const std::string& all) {
  Ranges ranges;
  for (const Span& span : pattern.find_all(all)) {
    for (std::string_view rest = span.of(all); !rest.empty();
         rest.remove_prefix(utf8_length(rest[0]))) {
      const std::uint32_t c = decode_utf8(rest);
      if (!ranges.empty() && ranges.back().second == c - 1) {
        ranges.back().second = c;
      } else {
        ranges.emplace_back(c, c);
      }
    }
  }
  return ranges;
}

TEST(PatternTest, PropertiesHoldTheCodePointsThatHuggingFacesDo) {
  std::ifstream file(SLUICE_TEST_DATA_DIR "/tokenizers/data/unicode_sets.json");
  const auto sets = nlohmann::json::parse(file);
  ASSERT_GT(sets.size(), 80U);
  std::string all;
  for (char32_t c = 0; c < 0x20000; ++c) {
    if (c < 0xD800 || c >= 0xE000) append_utf8(c, all);
  }
  for (const auto& [expression, expected] : sets.items()) {
    const auto found = covered_code_points(Pattern::regex("(?:" + expression + ")+", "test"), all);
    EXPECT_EQ(found.size(), expected[1].get<std::size_t>()) << expression;
    EXPECT_EQ(checksum(found), expected[2].get<std::string>()) << expression;
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
  EXPECT_THROW(matches(R"((a|aa)+\d)", std::string(200, 'a') + "b1"), Error);
}

TEST(PatternTest, WhatMeansSomethingElseToPcreIsRefused) {
  for (const char* expression : {"\\R",
                                 "\\X",
                                 "\\K",
                                 "\\G",
                                 "(?x:a)",
                                 "(?~a)",
                                 "(*UCP)",
                                 "(a)\\1",
                                 "\\k<a>",
                                 "\\Qa\\E",
                                 "\\",
                                 "[]a]",
                                 "\\p",
                                 "\\pL",
                                 "\\p{Nonsense}",
                                 "\\p{InBasicLatin}",
                                 "(",
                                 ")",
                                 "[a",
                                 "[a-\\d]",
                                 "[b-a]",
                                 "[[:nonsense:]]",
                                 "a**+",
                                 "a{2}?",
                                 "a{1,2}+",
                                 "\\xE9",
                                 "\\x",
                                 "\\u12",
                                 "\\x{110000}",
                                 "\\cA",
                                 "(?i:ss)",
                                 "(?i:\u00DF)",
                                 "(?i:[\u00DF])",
                                 "(?i)fi"}) {
    EXPECT_THROW(Pattern::regex(expression, "test"), Error) << expression;
  }
}

TEST(PatternTest, MessageNamesPlaceAndConstruct) {
  try {
    Pattern::regex("\\p{Nonsense}", "tokenizer.json.pre_tokenizer");
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("tokenizer.json.pre_tokenizer: "), 0U) << message;
    EXPECT_NE(message.find("Nonsense"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace sluice::tokenizers
