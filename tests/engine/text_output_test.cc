#include "engine/requests/text_output.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

/// Token i stands for the i-th text; "<...>" is a special token.
class ListTokenizer : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::vector<std::int32_t> encode(std::string_view, SpecialTokens) const override { return {}; }
  std::string token_bytes(std::int32_t id) const override {
    return is_special(id) ? "" : tokens_[static_cast<std::size_t>(id)];
  }
  bool strips_leading_space() const override { return false; }
  bool is_special(std::int32_t id) const override {
    return tokens_[static_cast<std::size_t>(id)].starts_with('<');
  }
  std::string special_text(std::int32_t id) const override {
    return is_special(id) ? tokens_[static_cast<std::size_t>(id)] : "";
  }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  std::vector<std::string> tokens_;
};

/// What came out after each token and at the end.
struct Outcome {
  std::vector<std::string> pieces;
  std::string text;
  bool stopped = false;
};

Outcome feed(const std::vector<std::string>& tokens, const std::vector<std::string>& stop = {}) {
  const ListTokenizer tokenizer(tokens);
  TextOutput output(tokenizer, stop);
  Outcome outcome;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    outcome.pieces.push_back(output.add(id));
  }
  outcome.pieces.push_back(output.finish());
  outcome.text = output.text();
  outcome.stopped = output.stopped();
  return outcome;
}

using Pieces = std::vector<std::string>;

TEST(TextOutputTest, TextComesTokenByToken) {
  const Outcome outcome = feed({" Once", " upon", "", " a"});
  EXPECT_EQ(outcome.pieces, (Pieces{" Once", " upon", "", " a", ""}));
  EXPECT_EQ(outcome.text, " Once upon a");
  EXPECT_FALSE(outcome.stopped);
}

TEST(TextOutputTest, CharacterSplitOverTokensComesWhole) {
  const Outcome outcome = feed({"a\xF0", "\x9F\x98", "\x80z"});
  EXPECT_EQ(outcome.pieces, (Pieces{"a", "", "\xF0\x9F\x98\x80z", ""}));
}

TEST(TextOutputTest, UnfinishedCharacterBecomesAReplacementAtTheEnd) {
  const Outcome outcome = feed({"a\xF0\x9F"});
  EXPECT_EQ(outcome.pieces, (Pieces{"a", "\xEF\xBF\xBD"}));
  EXPECT_EQ(outcome.text, "a\xEF\xBF\xBD");
}

TEST(TextOutputTest, StopTextEndsTheOutputAndIsNoPartOfIt) {
  const Outcome outcome = feed({"one END two", "three"}, {"END"});
  EXPECT_EQ(outcome.pieces, (Pieces{"one ", "", ""}));
  EXPECT_EQ(outcome.text, "one ");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, StopTextIsFoundAcrossTokens) {
  const Outcome outcome = feed({"one E", "N", "D", "two"}, {"END"});
  EXPECT_EQ(outcome.pieces, (Pieces{"one ", "", "", "", ""}));
  EXPECT_EQ(outcome.text, "one ");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, StopTextIsFoundInsideOfASplitCharacter) {
  const Outcome outcome = feed({"a\xC3", "\xA9", "b"}, {"\xC3\xA9"});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, HeldBackTextComesWhenItIsNoStopText) {
  const Outcome outcome = feed({"one E", "N", "T"}, {"END"});
  EXPECT_EQ(outcome.pieces, (Pieces{"one ", "", "ENT", ""}));
  EXPECT_FALSE(outcome.stopped);
}

TEST(TextOutputTest, HeldBackTextComesAtTheEnd) {
  const Outcome outcome = feed({"one EN"}, {"END"});
  EXPECT_EQ(outcome.pieces, (Pieces{"one ", "EN"}));
  EXPECT_EQ(outcome.text, "one EN");
  EXPECT_FALSE(outcome.stopped);
}

TEST(TextOutputTest, OnlyWhatMayBecomeAStopTextIsHeldBack) {
  const Outcome outcome = feed({"aab", "aaab", "aac"}, {"aac"});
  EXPECT_EQ(outcome.pieces, (Pieces{"aab", "aaab", "", ""}));
  EXPECT_EQ(outcome.text, "aabaaab");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, EarliestOfSeveralStopTextsCounts) {
  EXPECT_EQ(feed({"one two three"}, {"three", "two"}).text, "one ");
  EXPECT_EQ(feed({"ab", "cd"}, {"bcd", "c"}).text, "a");
  EXPECT_EQ(feed({"x\n", "\nUser:"}, {"User:", "\n\n"}).text, "x");
}

TEST(TextOutputTest, LongestPossibleStopTextIsHeldBack) {
  const Outcome outcome = feed({"ab", "c", "x"}, {"bcd", "cd"});
  EXPECT_EQ(outcome.pieces, (Pieces{"a", "", "bcx", ""}));
}

TEST(TextOutputTest, StopTextAtTheVeryBeginningLeavesNothing) {
  const Outcome outcome = feed({"EN", "D", "x"}, {"END"});
  EXPECT_EQ(outcome.text, "");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, SpecialTokenIsAStopTextAndNoText) {
  const Outcome outcome = feed({"a", "<end>", "b"}, {"<end>"});
  EXPECT_EQ(outcome.pieces, (Pieces{"a", "", "", ""}));
  EXPECT_EQ(outcome.text, "a");
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, SpecialTokensThatAreNoStopTextAreNoText) {
  const Outcome outcome = feed({"a", "<end>", "b", "<other>"}, {"<end >", "end>c"});
  EXPECT_EQ(outcome.text, "ab");
  EXPECT_FALSE(outcome.stopped);
  EXPECT_EQ(feed({"a", "<end>", "b"}).text, "ab");
}

TEST(TextOutputTest, StopTextMayHaveASpecialTokenInIt) {
  EXPECT_EQ(feed({"x y", ".", "<end>", "z"}, {"y.<end>"}).text, "x ");
  EXPECT_EQ(feed({"x y", "<end>", "zw"}, {"<end>z"}).text, "x y");
  EXPECT_EQ(feed({"x y", "<end>", "zw"}, {"nd"}).text, "x y");
  EXPECT_EQ(feed({"x", "<a>", "<b>", "z"}, {"<a><b>"}).text, "x");
}

// A reader does not see what is between.
TEST(TextOutputTest, StopTextIsFoundAroundASpecialToken) {
  const Outcome outcome = feed({"one E", "<x>", "ND", "two"}, {"END"});
  EXPECT_EQ(outcome.pieces, (Pieces{"one ", "", "", "", ""}));
  EXPECT_TRUE(outcome.stopped);
}

TEST(TextOutputTest, HeldBackSpecialTokensDoNotHoldBackTextForEver) {
  const Outcome outcome = feed({"a", "<x>", "b", "c"}, {"<x>d"});
  EXPECT_EQ(outcome.pieces, (Pieces{"a", "", "b", "c", ""}));
  EXPECT_EQ(feed({"a", "<x>"}, {"<x>d"}).pieces, (Pieces{"a", "", ""}));
}

}  // namespace
}  // namespace sluice
