#include "models/tokenizers/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "models/tokenizer.h"
#include "models/tokenizers/unicode.h"

namespace sluice {
namespace {

using namespace std::string_view_literals;

TEST(FindInvalidUtf8Test, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\0c"sv), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("é€😀\U0010FFFF\uE000"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789ab\xFF"), 12U);
  EXPECT_EQ(find_invalid_utf8("é\x80"), 2U);              // a continuation byte alone
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1U);          // overlong
  EXPECT_EQ(find_invalid_utf8("a\xE0\x80\x80"), 1U);      // overlong
  EXPECT_EQ(find_invalid_utf8("a\xF0\x80\x80\x80"), 1U);  // overlong
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1U);      // a surrogate
  EXPECT_EQ(find_invalid_utf8("a\xF4\x90\x80\x80"), 1U);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("a\xE2\x82"), 1U);          // unfinished
}

TEST(Utf8StreamTest, HoldsBackAnUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.feed("\x98"), "");
  EXPECT_EQ(stream.feed("\x80z"), "😀z");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8StreamTest, ReplacesWhatCanNeverBecomeUtf8) {
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("\xFF\xE2\x82x"), "\uFFFD\uFFFDx");
  EXPECT_EQ(stream.feed("\xE2\x82"), "");
  EXPECT_EQ(stream.feed("\xE2\x82\xAC"), "\uFFFD€");
  EXPECT_EQ(stream.feed("\xE2"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Test, CodePointsRoundTrip) {
  for (const char32_t c : {U'\0', U'a', U'\u007F', U'\u0080', U'\u07FF', U'\u0800', U'\uFFFF',
                           U'\U00010000', U'\U0010FFFF'}) {
    std::string text;
    tokenizers::append_utf8(c, text);
    EXPECT_EQ(tokenizers::decode_utf8(text), c);
    EXPECT_EQ(tokenizers::utf8_length(text[0]), text.size());
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
  }
}

TEST(Utf8Test, WordCharactersAreRustRegexs) {
  for (const char32_t c : {U'a', U'_', U'7', U'é', U'\u0301', U'中', U'\u200D', U'Ⅷ', U'ⓐ'}) {
    EXPECT_TRUE(tokenizers::is_word_character(c)) << static_cast<unsigned>(c);
  }
  for (const char32_t c : {U' ', U'-', U'½', U'€', U'😀', U'\u200B'}) {
    EXPECT_FALSE(tokenizers::is_word_character(c)) << static_cast<unsigned>(c);
  }
}

}  // namespace
}  // namespace sluice
