// Against what Hugging Face's components give one by one, and what AutoTokenizer makes of a folder;
// make_tokenizers.py makes the data.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pre_tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace sluice::tokenizers {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

const std::string data_folder = SLUICE_TEST_DATA_DIR "/tokenizers/data/";

json read_json(const std::string& name) {
  std::ifstream file(data_folder + name);
  EXPECT_TRUE(file) << name;
  return json::parse(file);
}

TEST(ComponentTest, NormalizersGiveWhatHuggingFacesDo) {
  const json data = read_json("components.json");
  ASSERT_GE(data.at("normalizers").size(), 17U);
  for (const json& known : data.at("normalizers")) {
    const auto normalizer = make_normalizer(JsonField(known[0], "test"));
    for (std::size_t i = 0; i < known[1].size(); ++i) {
      EXPECT_EQ(normalizer->normalize(data["texts"][i].get<std::string>()), known[1][i])
          << known[0].dump() << " text " << i;
    }
  }
}

TEST(ComponentTest, PreTokenizersGiveWhatHuggingFacesDo) {
  const json data = read_json("components.json");
  ASSERT_GE(data.at("pre_tokenizers").size(), 40U);
  for (const json& known : data.at("pre_tokenizers")) {
    const auto pre_tokenizer = make_pre_tokenizer(JsonField(known[0], "test"));
    for (std::size_t i = 0; i < known[1].size(); ++i) {
      const auto text = data["texts"][i].get<std::string>();
      Pieces pieces{text, {}, true};
      if (!text.empty()) pieces.spans = {{0, text.size()}};
      pre_tokenizer->apply(pieces);
      Strings found;
      for (const Span& span : pieces.spans) found.emplace_back(span.of(pieces.text));
      EXPECT_EQ(json(found), known[1][i]) << known[0].dump() << " text " << i;
    }
  }
}

std::string decode(const Decoder& decoder, const Strings& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += decoder.token_bytes(token);
  if (decoder.strips_leading_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
  Utf8Stream stream;
  std::string text = stream.feed(bytes);
  return text + stream.finish();
}

TEST(ComponentTest, DecodersGiveWhatHuggingFacesDo) {
  const json data = read_json("components.json");
  ASSERT_GE(data.at("decoders").size(), 9U);
  for (const json& known : data.at("decoders")) {
    const Decoder decoder{JsonField(known[0], "test")};
    for (std::size_t i = 0; i < known[1].size(); ++i)
      EXPECT_EQ(decode(decoder, data["tokens"][i].get<Strings>()), known[1][i])
          << known[0].dump() << " tokens " << i;
  }
}

TEST(TokenizerClassTest, FoldersGiveWhatAutoTokenizerDoes) {
  const json data = read_json("classes.json");
  ASSERT_GE(data.at("cases").size(), 80U);
  for (const json& known : data.at("cases")) {
    const test::TemporaryFolder folder;
    std::filesystem::copy_file(
        data_folder + known.at("base").get<std::string>() + "/tokenizer.json",
        folder.file("tokenizer.json"));
    folder.write("tokenizer_config.json", known.at("tokenizer_config").dump());
    folder.write("config.json", known.at("config").dump());
    const auto tokenizer = open_tokenizer(ModelFiles::open(folder.path().string()));
    for (std::size_t i = 0; i < known["ids"].size(); ++i) {
      EXPECT_EQ(json(tokenizer->encode(data["texts"][i].get<std::string>(),
                                       Tokenizer::SpecialTokens::add)),
                known["ids"][i])
          << known["base"] << known["tokenizer_config"] << known["config"] << " text " << i;
    }
  }
}

std::string warnings_of_vocab(const std::string& tokenizer_config, Ids& ids) {
  const test::TemporaryFolder folder;
  folder.write("vocab.json", R"({"a":0,"b":1,"ab":2,"</s>":3})");
  folder.write("merges.txt", "a b\n");
  folder.write("tokenizer_config.json", tokenizer_config);
  testing::internal::CaptureStderr();
  ids = open_tokenizer(ModelFiles::open(folder.path().string()))
            ->encode("ab", Tokenizer::SpecialTokens::add);
  return testing::internal::GetCapturedStderr();
}

TEST(TokenizerClassTest, FlagWithoutBosIsSaid) {
  Ids ids;
  const std::string said = warnings_of_vocab(
      R"({"tokenizer_class":"GPT2Tokenizer","bos_token":null,"add_bos_token":true})", ids);
  EXPECT_EQ(ids, (Ids{2}));
  EXPECT_NE(said.find("tokenizer_config.json: add_bos_token is true, but there is no bos_token"),
            std::string::npos)
      << said;
  EXPECT_EQ(warnings_of_vocab(R"({"bos_token":"</s>","add_bos_token":true})", ids), "");
  EXPECT_EQ(ids, (Ids{3, 2}));
}

}  // namespace
}  // namespace sluice::tokenizers
