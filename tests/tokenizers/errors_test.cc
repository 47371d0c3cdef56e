// What is malformed or not supported is refused in one line that says where and what.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "models/tokenizers/bpe_tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace sluice::tokenizers {
namespace {

using nlohmann::json;

json small_tokenizer() {
  return json::parse(R"({
    "version": "1.0", "added_tokens": [{"id": 4, "content": "<s>", "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}
  })");
}

std::string refusal(const std::string& text) {
  try {
    make_tokenizer_from_json(text, "x/tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// The message for the small tokenizer with one field changed.
std::string refusal(const std::string& pointer, const json& value) {
  json document = small_tokenizer();
  document[json::json_pointer(pointer)] = value;
  return refusal(document.dump());
}

void expect_refusal(const std::string& message, const std::vector<std::string>& parts) {
  EXPECT_EQ(message.find("x/tokenizer.json"), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

TEST(TokenizerErrorTest, SmallTokenizerIsAccepted) {
  const auto tokenizer = make_tokenizer_from_json(small_tokenizer().dump(), "x");
  EXPECT_EQ(tokenizer->encode("ab a<s>", Tokenizer::SpecialTokens::add),
            (std::vector<std::int32_t>{2, 3, 0, 4}));
  EXPECT_EQ(tokenizer->vocab_size(), 5);
}

TEST(TokenizerErrorTest, NotJson) {
  for (const char* text : {"", "{", "[1", "nul", "\xFF", "{\"a\":\"\xC0\x80\"}", "{} {}"}) {
    expect_refusal(refusal(text), {"JSON"});
  }
  expect_refusal(refusal("[]"), {"array", "object"});
  expect_refusal(refusal("3"), {"number", "object"});
}

TEST(TokenizerErrorTest, MissingPartsAreNamed) {
  json document = small_tokenizer();
  document.erase("model");
  expect_refusal(refusal(document.dump()), {"'model'"});
  document = small_tokenizer();
  document["model"].erase("vocab");
  expect_refusal(refusal(document.dump()), {"model: 'vocab'"});
  document = small_tokenizer();
  document["model"].erase("merges");
  expect_refusal(refusal(document.dump()), {"model: 'merges'"});
  EXPECT_EQ(refusal("/decoder", nullptr), "accepted");
}

TEST(TokenizerErrorTest, UnsupportedTypesAreNamed) {
  expect_refusal(refusal("/model/type", "Unigram"), {"model", "Unigram", "BPE"});
  expect_refusal(refusal("/normalizer", {{"type", "Precompiled"}}), {"normalizer", "Precompiled"});
  expect_refusal(refusal("/pre_tokenizer", {{"type", "UnicodeScripts"}}),
                 {"pre_tokenizer", "UnicodeScripts"});
  expect_refusal(refusal("/post_processor", {{"type", "Other"}}), {"post_processor", "Other"});
  for (const char* type : {"WordPiece", "BPEDecoder", "CTC"})
    expect_refusal(refusal("/decoder", {{"type", type}}), {"decoder", type});
  for (const char* type : {"WordPiece", "WordLevel"})
    expect_refusal(refusal("/model/type", type), {"model", type, "BPE"});
  expect_refusal(
      refusal("/normalizer",
              json::parse(
                  R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Precompiled"}]})")),
      {"normalizer.normalizers[1]", "Precompiled"});
  expect_refusal(
      refusal(
          "/decoder",
          json::parse(
              R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":2,"stop":0}]})")),
      {"decoders[1]", "Strip"});
  expect_refusal(refusal("/model/end_of_word_suffix", "</w>"), {"end_of_word_suffix", "</w>"});
  expect_refusal(refusal("/model/continuing_subword_prefix", "##"),
                 {"continuing_subword_prefix", "##"});
  expect_refusal(refusal("/model/dropout", 0.1), {"dropout"});
}

TEST(TokenizerErrorTest, WrongTypesAreNamed) {
  expect_refusal(refusal("/model/vocab", {"a", "b"}), {"model.vocab", "array", "object"});
  expect_refusal(refusal("/model/merges", "a b"), {"model.merges", "string", "array"});
  expect_refusal(refusal("/model/byte_fallback", 1), {"model.byte_fallback", "number"});
  expect_refusal(refusal("/model/unk_token", 0), {"model.unk_token", "number"});
  expect_refusal(refusal("/added_tokens", 1), {"added_tokens", "array"});
  expect_refusal(refusal("/added_tokens/0/content", 1), {"added_tokens[0].content", "string"});
  expect_refusal(refusal("/pre_tokenizer", "ByteLevel"), {"pre_tokenizer", "string", "object"});
}

TEST(TokenizerErrorTest, BadIds) {
  for (const json& id : {json(-1), json(8388608), json(2147483647), json(4294967296),
                         json(18446744073709551615U), json(1.0), json("1"), json(nullptr)}) {
    expect_refusal(refusal("/model/vocab/b", id), {"model.vocab", "\"b\"", "8388607"});
    expect_refusal(refusal("/added_tokens/0/id", id), {"added_tokens[0]", "id"});
  }
  expect_refusal(refusal("/model/vocab/b", 0), {"id 0"});
}

std::vector<std::int32_t> encode(const json& document, const std::string& text) {
  return make_tokenizer_from_json(document.dump(), "x")
      ->encode(text, Tokenizer::SpecialTokens::add);
}

// The values are those of tokenizers 0.23.3.
TEST(AddedTokenIdTest, AreGivenInOrderWhateverTheFileSays) {
  json document = small_tokenizer();
  const auto with_added = [&](const char* tokens) {
    document["added_tokens"] = json::parse(tokens);
    return document;
  };
  const char* twice = R"([{"id":4,"content":"<x>"},{"id":4,"content":"<y>"}])";
  EXPECT_EQ(encode(with_added(twice), "a<x>b<y>"), (std::vector<std::int32_t>{0, 4, 1, 5}));
  EXPECT_EQ(make_tokenizer_from_json(document.dump(), "x")->token_bytes(4), "<x>");
  const char* of_the_model = R"([{"id":1,"content":"<x>"}])";
  EXPECT_EQ(encode(with_added(of_the_model), "a<x>b"), (std::vector<std::int32_t>{0, 4, 1}));
  const char* far_away = R"([{"id":1000,"content":"<x>"}])";
  EXPECT_EQ(encode(with_added(far_away), "a<x>b"), (std::vector<std::int32_t>{0, 4, 1}));
  const char* of_a_known_text = R"([{"id":9,"content":"a","special":true}])";
  EXPECT_EQ(encode(with_added(of_a_known_text), "ab"), (std::vector<std::int32_t>{0, 1}));
}

TEST(TokenizerErrorTest, UnigramWithoutTypeIsCalledUnigram) {
  json document = small_tokenizer();
  document["model"] = json::parse(R"({"unk_id":0,"vocab":[["<unk>",0.0],["a",-1.5]]})");
  expect_refusal(refusal(document.dump()), {"model", "\"Unigram\"", "BPE"});
}

TEST(TokenizerErrorTest, HoleInTheVocabularyIsNoToken) {
  json document = small_tokenizer();
  document["model"]["vocab"]["z"] = 1000;
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "x");
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  for (const std::int32_t id : {-1, 500, 1001, 2147483647}) {
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
  }
}

TEST(TokenizerErrorTest, BadMerges) {
  expect_refusal(refusal("/model/merges", json::array({"a c"})), {"merge 0", "\"c\""});
  expect_refusal(refusal("/model/merges", json::array({"b a"})), {"merge 0", "\"ba\""});
  expect_refusal(refusal("/model/merges", json::array({"ab"})), {"model.merges[0]", "ab"});
  expect_refusal(refusal("/model/merges", json::array({"a b c"})), {"model.merges[0]"});
  expect_refusal(refusal("/model/merges", json::array({{"a", "b", "c"}})), {"model.merges[0]"});
  expect_refusal(refusal("/model/merges", json::array({json::array({"a", 1})})),
                 {"model.merges[0]"});
  EXPECT_EQ(refusal("/model/merges", json::array({json::array({"a", "b"})})), "accepted");
}

TEST(TokenizerErrorTest, BadTemplates) {
  const auto with = [](const char* single) {
    return json{
        {"type", "TemplateProcessing"},
        {"single", json::parse(single)},
        {"special_tokens", json::parse(R"({"<s>":{"id":"<s>","ids":[4]},"z":{"ids":[77]}})")}};
  };
  EXPECT_EQ(refusal("/post_processor",
                    with(R"([{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}])")),
            "accepted");
  expect_refusal(refusal("/post_processor", with(R"([{"SpecialToken":{"id":"<s>"}}])")),
                 {"sequence A"});
  expect_refusal(refusal("/post_processor", with(R"([{"Sequence":{"id":"B"}}])")), {"sequence A"});
  expect_refusal(
      refusal("/post_processor", with(R"([{"SpecialToken":{"id":"y"}},{"Sequence":{"id":"A"}}])")),
      {"'y'"});
  expect_refusal(
      refusal("/post_processor", with(R"([{"SpecialToken":{"id":"z"}},{"Sequence":{"id":"A"}}])")),
      {"77"});
}

TEST(TokenizerErrorTest, DeepNestingIsRefused) {
  const auto nest = [](int depth, const std::string& list, const std::string& inner) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += R"({"type":"Sequence",")" + list + R"(":[)";
    text += inner;
    for (int i = 0; i < depth; ++i) text += "]}";
    return text;
  };
  const auto document = [](const std::string& key, const std::string& value) {
    json rest = small_tokenizer();
    rest.erase(key);
    std::string text = rest.dump();
    return "{\"" + key + "\":" + value + "," + text.substr(1);
  };
  constexpr int depth = 100'000;
  expect_refusal(refusal(document("normalizer", nest(depth, "normalizers", R"({"type":"NFC"})"))),
                 {"nested"});
  expect_refusal(
      refusal(document("pre_tokenizer", nest(depth, "pretokenizers", R"({"type":"ByteLevel"})"))),
      {"nested"});
  expect_refusal(
      refusal(document("post_processor", nest(depth, "processors", R"({"type":"ByteLevel"})"))),
      {"nested"});
  expect_refusal(refusal(document("decoder", nest(depth, "decoders", R"({"type":"ByteLevel"})"))),
                 {"nested"});
  const std::string endless = std::string(depth, '[') + std::string(depth, ']');
  for (const char* key : {"model", "added_tokens", "truncation"})  // the last one is not looked at
    expect_refusal(refusal(document(key, endless)), {"tokenizer.json: nested deeper than 500"});

  constexpr int allowed = 400;
  const std::string brackets = std::string(allowed, '[') + std::string(allowed, ']');
  expect_refusal(refusal(document("model", brackets)), {"model"});
  expect_refusal(refusal(document("added_tokens", "[" + brackets + "]")), {"added_tokens[0]"});
  json bad = small_tokenizer();
  bad["model"]["vocab"] = "@";
  std::string text = bad.dump();
  text.replace(text.find("\"@\""), 3, "{\"a\":" + brackets + "}");
  expect_refusal(refusal(text), {"model.vocab"});
  EXPECT_EQ(refusal(document("truncation", brackets)), "accepted");
}

TEST(TokenizerErrorTest, UnknownCharacterWithoutUnknownToken) {
  json document = small_tokenizer();
  EXPECT_EQ(
      make_tokenizer_from_json(document.dump(), "x")->encode("acb", Tokenizer::SpecialTokens::add),
      (std::vector<std::int32_t>{2}));  // as Hugging Face's: dropped
  document["model"]["unk_token"] = "<unk>";
  const auto tokenizer = make_tokenizer_from_json(document.dump(), "x");
  EXPECT_THROW(tokenizer->encode("acb", Tokenizer::SpecialTokens::add), Error);
}

TEST(TokenizerErrorTest, TextThatIsNotUtf8) {
  const auto tokenizer = make_tokenizer_from_json(small_tokenizer().dump(), "x");
  EXPECT_THROW(tokenizer->encode("a\xFF", Tokenizer::SpecialTokens::add), Error);
}

/// A tokenizer's files, gone with the test.
class Folder {
 public:
  Folder& write(const std::string& name, const std::string& content) {
    folder_.write(name, content);
    return *this;
  }

  std::string refusal() const {
    try {
      open_tokenizer(ModelFiles::open(folder_.path().string()));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  test::TemporaryFolder folder_;
};

TEST(OpenTokenizerTest, MissingAndMalformedFilesAreNamed) {
  EXPECT_NE(Folder().refusal().find("expected tokenizer.json"), std::string::npos);
  EXPECT_NE(Folder().write("tokenizer.json", "{").refusal().find("tokenizer.json: "),
            std::string::npos);
  EXPECT_NE(Folder().write("tokenizer.model", "x").refusal().find("tokenizer.model: "),
            std::string::npos);
  EXPECT_NE(Folder().write("tokenizer.model", "").refusal().find("tokenizer.model: "),
            std::string::npos);
  EXPECT_NE(Folder()
                .write("tokenizer.json", small_tokenizer().dump())
                .write("tokenizer_config.json", "[]")
                .refusal()
                .find("tokenizer_config.json: "),
            std::string::npos);
}

TEST(OpenTokenizerTest, VocabAndMergesAreChecked) {
  const std::string vocab = R"({"a":0,"b":1,"ab":2,"</s>":3})";
  const auto refusal_of = [&](const std::string& merges, const std::string& config) {
    return Folder()
        .write("vocab.json", vocab)
        .write("merges.txt", merges)
        .write("tokenizer_config.json", config)
        .refusal();
  };
  EXPECT_EQ(refusal_of("#version: 0.2\r\na b\r\n\n", "{}"), "accepted");
  EXPECT_NE(refusal_of("a b\na b c\n", "{}").find("merges.txt: line 2"), std::string::npos);
  EXPECT_NE(refusal_of("a x\n", "{}").find("merges.txt: merge 0"), std::string::npos);
  EXPECT_EQ(refusal_of("a b\n", R"({"tokenizer_class":"Qwen2Tokenizer"})"), "accepted");
  EXPECT_NE(refusal_of("a b\n", R"({"tokenizer_class":"RobertaTokenizer"})")
                .find("tokenizer_config.json: tokenizer_class \"RobertaTokenizer\""),
            std::string::npos);
  EXPECT_NE(refusal_of("a b\n", R"({"add_bos_token":"yes"})")
                .find("tokenizer_config.json: add_bos_token"),
            std::string::npos);
  EXPECT_NE(refusal_of("a b\n", R"({"added_tokens_decoder":{"x":{"content":"a"}}})")
                .find("added_tokens_decoder"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::tokenizers
