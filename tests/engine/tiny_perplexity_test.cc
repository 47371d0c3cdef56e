// The embedded model against what Transformers measured (models/tiny/card.json).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "models/tokenizer.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using nlohmann::json;

const std::string tiny_folder = SLUICE_TEST_DATA_DIR "/../models/tiny/";

/// ln sum exp(logits) - logits[token]
double negative_log_likelihood(std::span<const float> logits, std::int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[static_cast<std::size_t>(token)];
}

struct Measured {
  double perplexity = 0;
  std::int64_t tokens = 0;
  std::int64_t stories = 0;
};

/// As the card defines it: every story alone, begin and end tokens around it, all but the first
/// predicted.
Measured measure(DType dtype) {
  test::TestModel model("tiny", dtype);
  const auto tokenizer = open_tokenizer(ModelFiles::open("tiny"));
  const ModelConfig& config = model.loaded().config();
  const auto width = static_cast<std::size_t>(config.vocab_size);
  std::ifstream file(tiny_folder + "heldout.jsonl");
  Measured measured;
  double total = 0;
  for (std::string line; std::getline(file, line); ++measured.stories) {
    std::vector<std::int32_t> ids = tokenizer->encode(
        json::parse(line).at("text").get<std::string>(), Tokenizer::SpecialTokens::add);
    ids.push_back(config.eos_token_ids.at(0));
    const std::vector<float> logits = model.logits(std::span(ids).first(ids.size() - 1));
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      total += negative_log_likelihood(std::span(logits).subspan(i * width, width), ids[i + 1]);
      ++measured.tokens;
    }
  }
  measured.perplexity = std::exp(total / static_cast<double>(measured.tokens));
  return measured;
}

class TinyPerplexityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(tiny_folder + "card.json");
    if (!file) GTEST_SKIP() << "models/tiny/card.json is not there";
    card = json::parse(file);
  }
  json card;
};

TEST_F(TinyPerplexityTest, F32IsWithinOneInAThousand) {
  const Measured measured = measure(DType::f32);
  EXPECT_EQ(measured.stories, card.at("heldout_stories").get<std::int64_t>());
  EXPECT_EQ(measured.tokens, card.at("heldout_tokens").get<std::int64_t>());
  const double expected = card.at("heldout_perplexity");
  EXPECT_NEAR(measured.perplexity / expected, 1, 1e-3);
  RecordProperty("perplexity", std::to_string(measured.perplexity));
}

TEST_F(TinyPerplexityTest, Bf16IsWithinTwoPercent) {
  const double expected = card.at("heldout_perplexity");
  const Measured measured = measure(DType::bf16);
  EXPECT_NEAR(measured.perplexity / expected, 1, 2e-2);
  RecordProperty("perplexity", std::to_string(measured.perplexity));
}

}  // namespace
}  // namespace sluice
