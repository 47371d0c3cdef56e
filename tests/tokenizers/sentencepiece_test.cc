// Against what the SentencePiece library gives for small models, one per option that bears on ids;
// make_sentencepiece.py makes the data.
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/tokenizers/golden_ids.h"

namespace sluice {
namespace {

using test::Ids;
using test::read_bytes;
using SpecialTokens = Tokenizer::SpecialTokens;

const std::string data_folder = SLUICE_TEST_DATA_DIR "/tokenizers/data/sentencepiece/";

std::unique_ptr<Tokenizer> open_kind(const std::string& kind) {
  return open_tokenizer(ModelFiles::open(data_folder + kind));
}

const std::vector<std::string>& lines() {
  static const auto all =
      nlohmann::json::parse(read_bytes(data_folder + "lines.json")).get<std::vector<std::string>>();
  return all;
}

class SentencePieceTest : public testing::TestWithParam<const char*> {
 protected:
  const std::string folder_ = data_folder + GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = open_kind(GetParam());
  const nlohmann::json expected_ = nlohmann::json::parse(read_bytes(folder_ + "/expected.json"));
};

TEST_P(SentencePieceTest, IdsEqualTheLibrarys) {
  const auto before = expected_.at("before").get<Ids>();
  test::IdsReader reader(read_bytes(folder_ + "/ids.bin"));
  ASSERT_EQ(lines().size(), 300U);
  int num_shown = 0;
  for (const std::string& line : lines()) {
    const Ids expected = reader.next_line();
    Ids around = before;
    around.insert(around.end(), expected.begin(), expected.end());
    EXPECT_EQ(tokenizer_->encode(line, SpecialTokens::leave_out), expected)
        << nlohmann::json(line).dump();
    EXPECT_EQ(tokenizer_->encode(line, SpecialTokens::add), around);
    if (HasFailure() && ++num_shown == 5) FAIL() << "and perhaps more";
  }
}

/// The expected texts come from tokens whose bytes are UTF-8, or have one U+FFFD a stray byte.
TEST_P(SentencePieceTest, DecodedTextEqualsTheLibrarys) {
  const auto& exceptions = expected_.at("decoded");
  for (std::size_t i = 0; i < lines().size(); ++i) {
    const Ids ids = tokenizer_->encode(lines()[i], SpecialTokens::add);
    const auto other = exceptions.find(std::to_string(i));
    const std::string expected = other == exceptions.end() ? lines()[i] : other->get<std::string>();
    EXPECT_EQ(tokenizer_->decode(ids), expected) << "line " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePieceTest,
                         testing::Values("unigram", "unigram_rules", "unigram_rules_continued",
                                         "unigram_bytes", "unigram_suffix", "unigram_marked",
                                         "unigram_unused", "unigram_unescaped", "bpe", "bpe_rules",
                                         "bpe_rules_continued", "bpe_bytes", "bpe_across_words",
                                         "bpe_suffix", "bpe_unused", "bpe_no_prefix", "word",
                                         "word_suffix", "char", "char_marked"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
