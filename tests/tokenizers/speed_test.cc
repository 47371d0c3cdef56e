// Long texts must not take long: the limits are wide, a quadratic algorithm misses them by far.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "models/tokenizer.h"

namespace sluice {
namespace {

constexpr std::size_t text_bytes = 1'000'000;

std::string repeat(std::string_view part) {
  std::string text;
  while (text.size() < text_bytes) text += part;
  return text;
}

class SpeedTest : public testing::TestWithParam<const char*> {
 protected:
  /// Encodes and gives the seconds; checks that decoding gives the text back.
  double encode_seconds(const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer_->encode(text, Tokenizer::SpecialTokens::leave_out);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_TRUE(tokenizer_->decode(ids) == text);  // a million bytes are nothing to print
    RecordProperty("seconds", std::to_string(elapsed.count()));
    return elapsed.count();
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer(
      ModelFiles::open(std::string(SLUICE_TEST_DATA_DIR "/tokenizers/data/") + GetParam()));
  // Measured on two shared cores: below 0.7 s, libsentencepiece below 3 s. Sanitizers take ten
  // times that.
  const double limit_s_ = 30;
};

TEST_P(SpeedTest, Prose) {
  EXPECT_LT(encode_seconds(repeat("All human beings are born free, and 1234 more. ")), limit_s_);
}
TEST_P(SpeedTest, NoSpaces) { EXPECT_LT(encode_seconds(repeat("freeequaldignity")), limit_s_); }
TEST_P(SpeedTest, OneLetter) { EXPECT_LT(encode_seconds(repeat("a")), limit_s_); }
TEST_P(SpeedTest, Spaces) { EXPECT_LT(encode_seconds("x" + repeat(" ") + "x"), limit_s_); }
TEST_P(SpeedTest, SpacesAndNewlines) {
  EXPECT_LT(encode_seconds("x" + repeat("    \n")), limit_s_);
}
TEST_P(SpeedTest, Han) { EXPECT_LT(encode_seconds(repeat("人人生而自由，在尊严")), limit_s_); }
TEST_P(SpeedTest, Emoji) {
  EXPECT_LT(encode_seconds(repeat("👩‍👩‍👧‍👦")), limit_s_);
}
TEST_P(SpeedTest, Marks) {
  // Two classes of marks out of order: sorting them by neighbours would be quadratic.
  const std::string text = "a" + repeat("\u0301\u0323");
  const auto start = std::chrono::steady_clock::now();
  tokenizer_->encode(text, Tokenizer::SpecialTokens::leave_out);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), limit_s_);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SpeedTest,
                         testing::Values("gpt2", "llama2", "llama2_model", "llama3", "mistral",
                                         "qwen2"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
