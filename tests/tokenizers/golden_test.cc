// Against what Hugging Face gives for 2,000 lines; make_tokenizers.py makes the data.
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "tests/tokenizers/golden_ids.h"

namespace sluice {
namespace {

using test::Ids;
using test::IdsReader;
using test::read_bytes;

const std::string data_folder = SLUICE_TEST_DATA_DIR "/tokenizers/data/";

const std::vector<std::string>& lines() {
  static const auto all =
      nlohmann::json::parse(read_bytes(data_folder + "lines.json")).get<std::vector<std::string>>();
  return all;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  const std::string folder_ = data_folder + GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer(ModelFiles::open(folder_));
  const nlohmann::json expected_ = nlohmann::json::parse(read_bytes(folder_ + "/expected.json"));
};

TEST_P(GoldenTest, IdsEqualHuggingFace) {
  const auto before = expected_.at("before").get<Ids>();
  const auto after = expected_.at("after").get<Ids>();
  IdsReader reader(read_bytes(folder_ + "/ids.bin"));
  ASSERT_EQ(lines().size(), 2000U);
  int num_shown = 0;
  for (const std::string& line : lines()) {
    const Ids expected = reader.next_line();
    Ids around = before;
    around.insert(around.end(), expected.begin(), expected.end());
    around.insert(around.end(), after.begin(), after.end());
    EXPECT_EQ(tokenizer_->encode(line, Tokenizer::SpecialTokens::leave_out), expected)
        << nlohmann::json(line).dump();
    EXPECT_EQ(tokenizer_->encode(line, Tokenizer::SpecialTokens::add), around);
    if (HasFailure() && ++num_shown == 5) FAIL() << "and perhaps more";
  }
}

TEST_P(GoldenTest, DecodingGivesTheBytesBack) {
  const auto& exceptions = expected_.at("decoded");
  for (std::size_t i = 0; i < lines().size(); ++i) {
    const Ids ids = tokenizer_->encode(lines()[i], Tokenizer::SpecialTokens::add);
    const auto other = exceptions.find(std::to_string(i));
    const std::string expected = other == exceptions.end() ? lines()[i] : other->get<std::string>();
    EXPECT_EQ(tokenizer_->decode(ids), expected) << "line " << i;
  }
}

TEST_P(GoldenTest, TokenByTokenGivesTheSameText) {
  for (const std::string& line : lines()) {
    const Ids ids = tokenizer_->encode(line, Tokenizer::SpecialTokens::add);
    Utf8Stream stream;
    std::string text;
    for (const std::int32_t id : ids) {
      text += stream.feed(tokenizer_->token_bytes(id));
      ASSERT_EQ(find_invalid_utf8(text), std::nullopt);
    }
    text += stream.finish();
    if (tokenizer_->strips_leading_space() && text.starts_with(' ')) text.erase(0, 1);
    ASSERT_EQ(text, tokenizer_->decode(ids));
  }
}

TEST_P(GoldenTest, EveryIdIsBelowVocabSize) {
  std::int32_t highest = 0;
  for (const std::string& line : lines()) {
    for (const std::int32_t id : tokenizer_->encode(line, Tokenizer::SpecialTokens::add)) {
      ASSERT_GE(id, 0);
      highest = std::max(highest, id);
    }
  }
  EXPECT_LT(highest, tokenizer_->vocab_size());
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest,
                         testing::Values("gpt2", "llama2", "llama2_model", "llama2_model_new",
                                         "llama3", "mistral", "opt", "qwen2", "qwen2_vocab",
                                         "roberta"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
