// Single features, worked out by hand; golden_test.cc has whole tokenizers.
#include "models/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "models/tokenizers/bpe_tokenizer.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pre_tokenizer.h"

namespace sluice::tokenizers {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

Strings cut(const char* pre_tokenizer, std::string_view text) {
  const json document = json::parse(pre_tokenizer);
  Pieces pieces{std::string(text), {{0, text.size()}}, true};
  make_pre_tokenizer(JsonField(document, "test"))->apply(pieces);
  Strings out;
  for (const Span& span : pieces.spans) out.emplace_back(span.of(pieces.text));
  return out;
}

std::string normalize(const char* normalizer, std::string_view text) {
  const json document = json::parse(normalizer);
  return make_normalizer(JsonField(document, "test"))->normalize(std::string(text));
}

TEST(PreTokenizerTest, SplitBehaviors) {
  const auto split = [](const std::string& behavior, const char* invert) {
    return cut((R"({"type":"Split","pattern":{"String":"-"},"behavior":")" + behavior +
                R"(","invert":)" + invert + "}")
                   .c_str(),
               "a--b-c");
  };
  EXPECT_EQ(split("Removed", "false"), (Strings{"a", "b", "c"}));
  EXPECT_EQ(split("Isolated", "false"), (Strings{"a", "-", "-", "b", "-", "c"}));
  EXPECT_EQ(split("MergedWithPrevious", "false"), (Strings{"a-", "-", "b-", "c"}));
  EXPECT_EQ(split("MergedWithNext", "false"), (Strings{"a", "-", "-b", "-c"}));
  EXPECT_EQ(split("Contiguous", "false"), (Strings{"a", "--", "b", "-", "c"}));
  EXPECT_EQ(split("Removed", "true"), (Strings{"-", "-", "-"}));
}

TEST(PreTokenizerTest, MetaspacePrefixes) {
  const auto metaspace = [](const std::string& scheme, std::string_view text) {
    return cut((R"({"type":"Metaspace","replacement":"_","prepend_scheme":")" + scheme +
                R"(","split":true})")
                   .c_str(),
               text);
  };
  EXPECT_EQ(metaspace("always", "a b"), (Strings{"_a", "_b"}));
  EXPECT_EQ(metaspace("first", "a  b"), (Strings{"_a", "_", "_b"}));
  EXPECT_EQ(metaspace("never", "a b"), (Strings{"a", "_b"}));
  EXPECT_EQ(metaspace("always", " a"), (Strings{"_a"}));
}

TEST(PreTokenizerTest, OnlyTheFirstPieceOfTheTextIsFirst) {
  const char* sequence = R"({"type":"Sequence","pretokenizers":[
    {"type":"Split","pattern":{"String":"-"},"behavior":"Removed","invert":false},
    {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false}]})";
  EXPECT_EQ(cut(sequence, "a-b"), (Strings{"_a", "b"}));
  EXPECT_EQ(cut(sequence, "-b"), (Strings{"b"}));
}

TEST(PreTokenizerTest, Digits) {
  EXPECT_EQ(cut(R"({"type":"Digits","individual_digits":true})", "a12b"),
            (Strings{"a", "1", "2", "b"}));
  EXPECT_EQ(cut(R"({"type":"Digits","individual_digits":false})", "a12b"),
            (Strings{"a", "12", "b"}));
}

TEST(PreTokenizerTest, ByteLevelAlphabetIsInvertible) {
  std::string all;
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    all += byte_level_character(byte);
  }
  EXPECT_EQ(all.size(),
            188U + 2 * 162U - 94U);  // 94 ASCII characters take one byte, the others two
  EXPECT_EQ(byte_level_character(' '), "Ġ");
  EXPECT_EQ(byte_level_byte(U'Ġ'), ' ');
  EXPECT_EQ(byte_level_byte(U'中'), std::nullopt);
  EXPECT_EQ(byte_level_byte(U' '), std::nullopt);
}

TEST(NormalizerTest, UnicodeForms) {
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "a\u0323\u0301 e\u0301 \u212B \uAC00"),
            "\u1EA1\u0301 \u00E9 \u00C5 \uAC00");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "a\u0301\u0323"), "\u1EA1\u0301");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "\u1112\u1161\u11AB"), "한");
  EXPECT_EQ(normalize(R"({"type":"NFD"})", "é한"), "e\u0301\u1112\u1161\u11AB");
  EXPECT_EQ(normalize(R"({"type":"NFKC"})", "ﬁ²e\u0301"), "fi2é");
  EXPECT_EQ(normalize(R"({"type":"NFKD"})", "ﬁé"), "fie\u0301");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", std::string("\0\u00E9\0", 4)),
            std::string("\0\u00E9\0", 4));
}

TEST(NormalizerTest, MarksThatHuggingFaceDoesNotKnowStayInPlace) {
  // U+0315 has class 232, U+0323 220; U+07FD came with Unicode 11.
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "a\u0315\u0323"), "\u1EA1\u0315");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "a\u0315\u07FD\u0323"), "a\u0315\u07FD\u0323");
}

TEST(NormalizerTest, PrependAndReplace) {
  const char* sequence = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
    {"type":"Replace","pattern":{"String":" "},"content":"_"},{"type":"Replace","pattern":{"Regex":"[0-9]+"},"content":"$0"}]})";
  EXPECT_EQ(normalize(sequence, "a 12"), "_a_$0");
  EXPECT_EQ(normalize(sequence, ""), "");
}

json words_tokenizer() {
  return json::parse(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, " ": 3, "ab": 4, "aa": 5, "aab": 6, "!": 7},
              "merges": []}})");
}

Ids encode(const json& document, std::string_view text) {
  return make_tokenizer_from_json(document.dump(), "test")
      ->encode(text, Tokenizer::SpecialTokens::add);
}

TEST(BpeTest, LowestRankFirstThenLeftmost) {
  json document = words_tokenizer();
  document["model"]["merges"] = json::array({"a b", "a a", "aa b"});
  EXPECT_EQ(encode(document, "aab"), (Ids{1, 4}));
  EXPECT_EQ(encode(document, "aaa"), (Ids{5, 1}));
  document["model"]["merges"] = json::array({"a a", "a b", "aa b"});
  EXPECT_EQ(encode(document, "aab"), (Ids{6}));
  EXPECT_EQ(encode(document, "aaab"), (Ids{5, 4}));
}

TEST(BpeTest, LongPiecesMergeLikeShortOnes) {
  json document = words_tokenizer();
  document["model"]["merges"] = json::array({"a a", "a b", "aa b"});
  // The same word again and again, kept apart by a character that never merges.
  for (const std::string word : {"aab", "aaab", "abab", "aaaa", "baab"}) {
    const Ids once = encode(document, word + "!");
    Ids expected;
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += word + "!";
      expected.insert(expected.end(), once.begin(), once.end());
    }
    EXPECT_EQ(encode(document, text), expected) << word;
  }
}

TEST(BpeTest, UnknownCharactersFuseOnDemand) {
  json document = words_tokenizer();
  EXPECT_EQ(encode(document, "axyb"), (Ids{1, 0, 0, 2}));
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(document, "axyb"), (Ids{1, 0, 2}));
}

TEST(BpeTest, BytesStandForUnknownCharacters) {
  json document = words_tokenizer();
  document["model"]["byte_fallback"] = true;
  document["model"]["vocab"]["<0xC3>"] = 10;
  document["model"]["vocab"]["<0xA9>"] = 11;
  document["decoder"] = {{"type", "ByteFallback"}};
  EXPECT_EQ(encode(document, "aéè"), (Ids{1, 10, 11, 0}));  // è lacks a byte
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "test");
  EXPECT_EQ(tokenizer->decode(Ids{1, 10, 11}), "aé");
  EXPECT_EQ(tokenizer->token_bytes(10), "\xC3");
}

TEST(BpeTest, WholePiecesNeedNoMergesWhenTheyAreIgnored) {
  json document = words_tokenizer();
  EXPECT_EQ(encode(document, "ab"), (Ids{1, 2}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(document, "ab"), (Ids{4}));
}

json added(const char* content, std::int32_t id, const json& flags = json::object()) {
  json token = {{"content", content}, {"id", id}, {"normalized", false}};
  token.update(flags);
  return token;
}

TEST(AddedTokenTest, LongestAtTheLeftmostPlace) {
  json document = words_tokenizer();
  document["added_tokens"] = json::array({added("<x", 8), added("<x>", 9), added("x>y", 10)});
  EXPECT_EQ(encode(document, "a<x>yb"), (Ids{1, 9, 0, 2}));
  EXPECT_EQ(encode(document, "<x<x>"), (Ids{8, 9}));
}

TEST(AddedTokenTest, StripTakesWhiteSpaceAlong) {
  json document = words_tokenizer();
  document["added_tokens"] =
      json::array({added("<l>", 8, {{"lstrip", true}}), added("<r>", 9, {{"rstrip", true}})});
  EXPECT_EQ(encode(document, "a  <l> b"), (Ids{1, 8, 3, 2}));
  EXPECT_EQ(encode(document, "a <r> \t\u3000b"), (Ids{1, 3, 9, 2}));
  EXPECT_EQ(encode(document, "<r> <l>"), (Ids{9, 8}));
}

TEST(AddedTokenTest, SingleWord) {
  json document = words_tokenizer();
  document["added_tokens"] = json::array({added("ab", 8, {{"single_word", true}})});
  EXPECT_EQ(encode(document, "ab"), (Ids{4}));  // the model's id, as Hugging Face's
  document["model"]["vocab"].erase("ab");
  document["model"]["vocab"]["other"] = 4;
  EXPECT_EQ(encode(document, "ab ab!"), (Ids{8, 3, 8, 7}));
  EXPECT_EQ(encode(document, "aab abb"), (Ids{1, 1, 2, 3, 1, 2, 2}));
}

TEST(AddedTokenTest, NormalizedOnesAreFoundInNormalizedText) {
  json document = words_tokenizer();
  document["normalizer"] = {{"type", "NFC"}};
  document["added_tokens"] =
      json::array({added("e\u0301", 8, {{"normalized", true}}), added("o\u0301", 9)});
  EXPECT_EQ(encode(document, "\u00E9"), (Ids{8}));
  EXPECT_EQ(encode(document, "e\u0301"), (Ids{8}));
  EXPECT_EQ(encode(document, "\u00F3"), (Ids{0}));
  EXPECT_EQ(encode(document, "o\u0301"), (Ids{9}));
}

TEST(AddedTokenTest, SpecialOnesAreLeftOutOfText) {
  json document = words_tokenizer();
  document["added_tokens"] = json::array({added("<s>", 8, {{"special", true}}), added("<t>", 9)});
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "test");
  EXPECT_TRUE(tokenizer->is_special(8));
  EXPECT_FALSE(tokenizer->is_special(9));
  EXPECT_EQ(tokenizer->decode(Ids{8, 1, 9, 8, 2}), "a<t>b");
}

TEST(TokenizerConfigTest, PostProcessorCountsAndNotTheFlags) {
  json document = words_tokenizer();
  document["added_tokens"] =
      json::array({added("<s>", 8, {{"special", true}}), added("</s>", 9, {{"special", true}})});
  document["post_processor"] = {
      {"type", "BertProcessing"}, {"cls", {"<s>", 8}}, {"sep", {"</s>", 9}}};
  TokenizerConfig config;
  config.add_bos_token = false;
  config.add_eos_token = true;
  testing::internal::CaptureStderr();
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "x/tokenizer.json", config);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(tokenizer->encode("a", Tokenizer::SpecialTokens::add), (Ids{8, 1, 9}));
  EXPECT_NE(said.find("x/tokenizer.json: "), std::string::npos) << said;
  EXPECT_NE(said.find("add_bos_token false"), std::string::npos) << said;
  EXPECT_EQ(said.find("add_eos_token"), std::string::npos) << said;
}

TEST(TokenizerConfigTest, SecondBosIsSaidOnce) {
  json document = words_tokenizer();
  document["added_tokens"] = json::array({added("<s>", 8), added("</s>", 9)});
  document["post_processor"] = {
      {"type", "BertProcessing"}, {"cls", {"<s>", 8}}, {"sep", {"</s>", 9}}};
  testing::internal::CaptureStderr();
  EXPECT_EQ(encode(document, "<s>a"), (Ids{8, 8, 1, 9}));  // as Transformers
  EXPECT_EQ(encode(document, "<s>b"), (Ids{8, 8, 2, 9}));
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find("a prompt begins with the token 8");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("a prompt begins", first + 1), std::string::npos) << said;
}

TEST(TokenizerConfigTest, DeclaresMoreSpecialTokens) {
  TokenizerConfig config;
  config.special_tokens.push_back({-1, "ab", false, false, false, false, true});
  config.special_tokens.push_back({-1, "unheard of", false, false, false, false, true});
  config.added_tokens.push_back({8, "<x>", false, false, false, false, false});
  const auto tokenizer = make_tokenizer_from_json(words_tokenizer().dump(), "test", config);
  EXPECT_EQ(tokenizer->encode("aab<x>", Tokenizer::SpecialTokens::add), (Ids{1, 4, 8}));
  EXPECT_TRUE(tokenizer->is_special(4));
  EXPECT_EQ(tokenizer->vocab_size(), 9);
}

TEST(DecoderTest, TokensWithoutADecoderAreJoinedWithSpaces) {
  json document = words_tokenizer();
  document["decoder"] = nullptr;
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "test");
  EXPECT_EQ(tokenizer->decode(Ids{1, 2, 3, 4}), "a b   ab");  // tokenizers 0.23.3
}

TEST(TokenizerTest, ManyThreadsMayEncodeAtOnce) {
  const auto tokenizer =
      open_tokenizer(ModelFiles::open(SLUICE_TEST_DATA_DIR "/tokenizers/data/qwen2"));
  const std::string text = "All 123 people's rights, e\u0301galite\u0301 人人 😀";
  const Ids expected = tokenizer->encode(text, Tokenizer::SpecialTokens::add);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::vector<int> num_wrong(4, 0);
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        wrong += tokenizer->encode(text, Tokenizer::SpecialTokens::add) == expected ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace sluice::tokenizers
