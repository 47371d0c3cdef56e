// Against the Python reference for real tokenizers, which lie outside the tree:
// make_reference_ids.py says how. Skipped without the two folders.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "tests/tokenizers/golden_ids.h"

namespace sluice {
namespace {

using test::Ids;

constexpr int max_shown = 5;

class ReferenceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("SLUICE_SHARED_DIR");
    const char* expected = std::getenv("SLUICE_TOKENIZER_IDS");
    if (shared == nullptr || expected == nullptr) {
      GTEST_SKIP() << "needs SLUICE_SHARED_DIR and SLUICE_TOKENIZER_IDS; make_reference_ids.py "
                      "says what they are";
    }
    const std::string name = GetParam();
    tokenizer_ = open_tokenizer(ModelFiles::open(std::string(shared) + "/tokenizers/" + name));
    const std::string folder = std::string(expected) + "/";
    lines_ = nlohmann::json::parse(test::read_bytes(folder + "lines.json"))
                 .get<std::vector<std::string>>();
    ASSERT_EQ(lines_.size(), 2500U);
    expected_ = nlohmann::json::parse(test::read_bytes(folder + name + "/expected.json"));
    test::IdsReader reader(test::read_bytes(folder + name + "/ids.bin"));
    for (std::size_t i = 0; i < lines_.size(); ++i) ids_.push_back(reader.next_line());
  }

  Ids with_special_tokens(const Ids& ids) const {
    Ids all = expected_.at("before").get<Ids>();
    all.insert(all.end(), ids.begin(), ids.end());
    const Ids after = expected_.at("after").get<Ids>();
    all.insert(all.end(), after.begin(), after.end());
    return all;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> lines_;
  std::vector<Ids> ids_;
  nlohmann::json expected_;
};

TEST_P(ReferenceTest, IdsAreEqual) {
  int num_wrong = 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Ids plain = tokenizer_->encode(lines_[i], Tokenizer::SpecialTokens::leave_out);
    const Ids around = tokenizer_->encode(lines_[i], Tokenizer::SpecialTokens::add);
    if (plain == ids_[i] && around == with_special_tokens(ids_[i])) continue;
    if (++num_wrong > max_shown) continue;
    EXPECT_EQ(plain, ids_[i]) << "line " << i << ": " << nlohmann::json(lines_[i]).dump();
    EXPECT_EQ(around, with_special_tokens(ids_[i])) << "line " << i;
  }
  EXPECT_EQ(num_wrong, 0) << "of " << lines_.size() << " lines";
}

TEST_P(ReferenceTest, DecodedTextIsEqual) {
  const nlohmann::json& exceptions = expected_.at("decoded");
  int num_wrong = 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const auto other = exceptions.find(std::to_string(i));
    const std::string text = other == exceptions.end() ? lines_[i] : other->get<std::string>();
    const std::string decoded = tokenizer_->decode(with_special_tokens(ids_[i]));
    if (decoded == text) continue;
    if (++num_wrong > max_shown) continue;
    EXPECT_EQ(decoded, text) << "line " << i;
  }
  EXPECT_EQ(num_wrong, 0) << "of " << lines_.size() << " lines";
}

INSTANTIATE_TEST_SUITE_P(Shared, ReferenceTest,
                         testing::Values("deepseek_v4", "mistral_v03", "pythia", "qwen2_json",
                                         "spm_real_jawa"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
