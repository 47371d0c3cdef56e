// Logits and greedy continuations against Hugging Face Transformers, for tiny random models of
// every family and of every kind of quantised weights (tests/golden/README.md says how they were
// made).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

/// max |actual - expected| over max |expected|.
double relative_difference(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0;
  double magnitude = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(actual[i]) - expected[i]));
    magnitude = std::max(magnitude, std::abs(static_cast<double>(expected[i])));
  }
  return difference / magnitude;
}

/// The rows of sequences which are the first `lengths[i]` tokens, one after the other.
std::vector<float> rows_of(const std::vector<float>& logits, std::size_t width,
                           const std::vector<std::size_t>& lengths) {
  std::vector<float> rows;
  for (const std::size_t length : lengths) {
    const auto end = logits.begin() + static_cast<std::ptrdiff_t>(length * width);
    rows.insert(rows.end(), logits.begin(), end);
  }
  return rows;
}

/// Smallest cosine of any row.
double worst_row_cosine(const std::vector<float>& actual, const std::vector<float>& expected,
                        std::size_t width) {
  double worst = 1;
  for (std::size_t begin = 0; begin < expected.size(); begin += width) {
    double dot = 0;
    double a = 0;
    double b = 0;
    for (std::size_t i = begin; i < begin + width; ++i) {
      dot += static_cast<double>(actual[i]) * expected[i];
      a += static_cast<double>(actual[i]) * actual[i];
      b += static_cast<double>(expected[i]) * expected[i];
    }
    worst = std::min(worst, dot / std::sqrt(a * b));
  }
  return worst;
}

struct Case {
  std::string name;
  std::string folder;
  double f32_difference;  ///< of logits, relative to the largest one

  operator std::string() const { return name; }  // NOLINT(google-explicit-constructor)
  friend std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.name; }
};

std::vector<Case> cases(const std::string& kind, double f32_difference) {
  std::vector<Case> result;
  for (const std::string& name : test::golden_cases(kind))
    result.push_back({name, test::golden_folder(name, kind), f32_difference});
  return result;
}

class TransformersTest : public ::testing::TestWithParam<Case> {
 protected:
  std::string folder() const { return GetParam().folder; }
  test::GoldenFile expected() const { return test::GoldenFile(folder(), "expected.safetensors"); }
};

TEST_P(TransformersTest, F32LogitsAreTheSameButForRounding) {
  const auto golden = expected();
  const std::vector<std::int32_t> prompt = golden.ints("prompt");
  const std::vector<float> logits = golden.floats("logits_f32");
  const double bound = GetParam().f32_difference;
  test::TestModel model(folder(), DType::f32);
  const double at_once = relative_difference(model.logits(prompt), logits);
  EXPECT_LT(at_once, bound);
  // In pieces, through the KV cache, and through the split attention pair.
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  EXPECT_LT(relative_difference(model.logits(prompt, {1, 1, 30, 17, tokens - 50, 1}), logits),
            bound);
  EXPECT_LT(
      relative_difference(model.logits(prompt, {40, tokens - 40}, AttentionForm::split), logits),
      bound);
  RecordProperty("relative_difference", fmt::format("{:.2g}", at_once));
}

TEST_P(TransformersTest, RaggedBatchHasTheLogitsOfEachSequence) {
  const auto golden = expected();
  const std::vector<std::int32_t> prompt = golden.ints("prompt");
  const std::vector<float> logits = golden.floats("logits_f32");
  const std::size_t width = logits.size() / prompt.size();
  const std::vector<std::size_t> lengths = {33, prompt.size(), 1, 17, 2, 64, 9};
  const std::vector<float> rows = rows_of(logits, width, lengths);
  const std::vector<float> bf16_rows = rows_of(
      golden.contains("logits_bf16w") ? golden.floats("logits_bf16w") : logits, width, lengths);
  for (const int threads : {1, 2, 3}) {
    test::TestModel f32(folder(), DType::f32, threads);
    EXPECT_LT(relative_difference(f32.ragged_logits(prompt, lengths), rows),
              GetParam().f32_difference)
        << threads << " threads";
    test::TestModel bf16(folder(), DType::bf16, threads);
    EXPECT_GE(worst_row_cosine(bf16.ragged_logits(prompt, lengths), bf16_rows, width), 0.9999)
        << threads << " threads";
  }
}

TEST_P(TransformersTest, StagesGiveTheSameBitsAsSublayersOneByOne) {
  const std::vector<std::int32_t> prompt = expected().ints("prompt");
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    test::TestModel model(folder(), dtype);
    for (const AttentionForm attention : {AttentionForm::fused, AttentionForm::split}) {
      const std::vector<std::int64_t> chunks = {tokens - 20, 19, 1};
      EXPECT_EQ(model.logits(prompt, chunks, attention, Fusion::stages),
                model.logits(prompt, chunks, attention, Fusion::sublayers))
          << to_string(dtype);
    }
  }
}

TEST_P(TransformersTest, Bf16LogitsPointTheSameWay) {
  const auto golden = expected();
  const std::vector<std::int32_t> prompt = golden.ints("prompt");
  const std::vector<float> logits =
      golden.floats(golden.contains("logits_bf16w") ? "logits_bf16w" : "logits_f32");
  test::TestModel model(folder(), DType::bf16);
  const double cosine =
      worst_row_cosine(model.logits(prompt), logits, logits.size() / prompt.size());
  EXPECT_GE(cosine, 0.9999);
  RecordProperty("worst_row_cosine", std::to_string(cosine));
}

TEST_P(TransformersTest, GreedyContinuationsAreIdenticalInF32) {
  const auto golden = expected();
  test::TestModel model(folder(), DType::f32);
  EXPECT_EQ(model.generate({golden.ints("greedy_prompt")}, 64, 1).front(), golden.ints("greedy"));
}

TEST_P(TransformersTest, RaggedBatchGivesEachPromptsOwnContinuation) {
  const auto golden = expected();
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::vector<std::int32_t>> continuations;
  for (int i = 0; i < 7; ++i) {
    prompts.push_back(golden.ints("ragged_prompt_" + std::to_string(i)));
    continuations.push_back(golden.ints("ragged_greedy_" + std::to_string(i)));
  }
  for (const int threads : {1, 2, 3}) {
    test::TestModel model(folder(), DType::f32, threads);
    for (const std::int64_t batch : {7, 1, 3}) {
      EXPECT_EQ(model.generate(prompts, 24, batch), continuations)
          << threads << " threads, batch " << batch;
    }
    std::reverse(prompts.begin(), prompts.end());
    std::reverse(continuations.begin(), continuations.end());
    EXPECT_EQ(model.generate(prompts, 24, 4), continuations) << threads << " threads, other order";
    EXPECT_EQ(model.generate(prompts, 24, 2, {}, AttentionForm::split, 5), continuations)
        << threads << " threads, split attention, prompts in chunks of 5";
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TransformersTest, ::testing::ValuesIn(cases("models", 1e-4)),
                         [](const auto& of) { return test::golden_test_name(of); });
INSTANTIATE_TEST_SUITE_P(GoldenQuantized, TransformersTest,
                         ::testing::ValuesIn(cases("quantized_models", 1e-6)),
                         [](const auto& of) { return test::golden_test_name(of); });

}  // namespace
}  // namespace sluice
