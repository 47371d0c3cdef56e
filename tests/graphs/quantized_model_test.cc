// Models with quantised weights, beside the same with the values that their codes stand for.
#include "tests/support/quantized_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "models/quantized/quantized_tensor.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

/// A quantised model's weights as plain f32 ones.
class DequantizedWeights final : public WeightSource {
 public:
  explicit DequantizedWeights(std::shared_ptr<const WeightSource> coded)
      : coded_(std::move(coded)) {}

  TensorView tensor(TensorId id) const override {
    const auto weight = coded_->quantized(id);
    if (!weight) return coded_->tensor(id);
    std::vector<float>& values = values_[{static_cast<int>(id.role), id.layer}];
    if (values.empty()) {
      CodedRows rows;
      weight->read(0, weight->num_rows(), rows);
      values.resize(static_cast<std::size_t>(weight->num_rows() * weight->in()));
      dequantize(weight->format(), weight->in(), rows, values);
    }
    return {.name = weight->name(),
            .file = weight->file(),
            .dtype = DType::f32,
            .shape = weight->shape(),
            .data = std::as_bytes(std::span(values))};
  }

 private:
  std::shared_ptr<const WeightSource> coded_;
  mutable std::map<std::pair<int, std::int64_t>, std::vector<float>> values_;
};

Model dequantized(const Model& model) {
  Model plain = model;
  plain.config.layer_formats.clear();
  plain.config.head_format = {};
  plain.config.quantization.reset();
  plain.weights = std::make_shared<DequantizedWeights>(model.weights);
  return plain;
}

std::vector<std::int32_t> some_tokens(std::size_t count, std::int32_t vocab_size) {
  std::vector<std::int32_t> tokens(count);
  std::int32_t state = 17;
  for (std::int32_t& token : tokens) token = state = (state * 31 + 7) % vocab_size;
  return tokens;
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

double worst_cosine(const std::vector<float>& a, const std::vector<float>& b, std::size_t width) {
  double worst = 1;
  for (std::size_t row = 0; row < a.size(); row += width) {
    double dot = 0;
    double aa = 0;
    double bb = 0;
    for (std::size_t i = row; i < row + width; ++i) {
      dot += static_cast<double>(a[i]) * b[i];
      aa += static_cast<double>(a[i]) * a[i];
      bb += static_cast<double>(b[i]) * b[i];
    }
    worst = std::min(worst, dot / std::sqrt(aa * bb));
  }
  return worst;
}

struct Case {
  const char* layers;
  const char* head;  ///< or null: plain
  std::vector<TensorRole> keep;
};

class QuantizedModelTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::int32_t vocab_size = test::QuantizedModel::vocab_size;
  test::QuantizedModel coded_{GetParam().layers, GetParam().head, GetParam().keep};
  Model model_ = open_model(coded_.path());
  const std::vector<std::int32_t> prompt_ = some_tokens(70, vocab_size);
};

TEST_P(QuantizedModelTest, F32LogitsAreThoseOfTheValues) {
  test::TestModel coded(model_, DType::f32);
  test::TestModel plain(dequantized(model_), DType::f32);
  const std::vector<float> expected = plain.logits(prompt_);
  // Either may be 1e-6 off: both are sums in f32, of other orders.
  EXPECT_LT(largest_difference(coded.logits(prompt_), expected), 2e-6 * largest(expected));
  const std::vector<std::vector<std::int32_t>> prompts = {
      some_tokens(5, 300), some_tokens(33, 310), some_tokens(1, 290), some_tokens(64, 331)};
  EXPECT_EQ(coded.generate(prompts, 20, 4), plain.generate(prompts, 20, 4));
}

TEST_P(QuantizedModelTest, Bf16LogitsPointTheSameWay) {
  test::TestModel coded(model_, DType::bf16);
  test::TestModel plain(dequantized(model_), DType::f32);
  EXPECT_GE(worst_cosine(coded.logits(prompt_), plain.logits(prompt_), vocab_size), 0.9999);
}

TEST_P(QuantizedModelTest, ARowHasTheSameBitsHoweverItIsComputed) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      test::TestModel model(model_, dtype, threads);
      const std::vector<float> at_once = model.logits(prompt_);
      if (first.empty()) first = at_once;
      EXPECT_EQ(at_once, first) << threads << " threads, " << to_string(dtype);
      EXPECT_EQ(model.logits(prompt_, {70}, AttentionForm::fused, Fusion::sublayers), first)
          << to_string(dtype);
      if (dtype == DType::f32) continue;  // its attention depends on where a prompt is cut
      EXPECT_EQ(model.logits(prompt_, {40, 30}), first);
      EXPECT_EQ(model.logits(prompt_, {17, 8, 45}, AttentionForm::fused, Fusion::sublayers), first);
    }
  }
}

TEST_P(QuantizedModelTest, TakesAsManyBytesAsItsFormats) {
  const test::TestModel model(model_, DType::bf16);
  const PackedWeights packed(model_.config, DType::bf16);
  const LayerWeights& layer = model.loaded().layers().front();
  const WeightFormat wanted = parse_weight_format(GetParam().layers);
  EXPECT_EQ(layer.matrices[LayerWeight::qkv].type.format.codes, wanted.codes);
  EXPECT_EQ(layer.matrices[LayerWeight::fc1].type.format.codes, wanted.codes);
  const bool keeps = !GetParam().keep.empty();
  EXPECT_EQ(layer.matrices[LayerWeight::fc2].type.format.is_plain(), keeps);
  EXPECT_EQ(model.loaded().head.type.format.is_plain(), GetParam().head == nullptr);
  // Codes and scales of [384, 256], whole strips of 64 rows; the formula by hand.
  if (wanted == parse_weight_format("int4-g32")) {
    EXPECT_EQ(layer.matrices[LayerWeight::fc1].data.size_bytes(), 384U * 256 / 2 + 384U * 8 * 2);
  }
  EXPECT_EQ(model.loaded().weight_bytes(),
            packed_weight_bytes(model_.config, DType::bf16) + 4U * 256 + 4U * 16);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantizedModelTest,
    ::testing::Values(Case{"int4-g32", "int4-g32", {}}, Case{"int4-g128z", nullptr, {}},
                      Case{"int4-g64", "int8-g32", {TensorRole::fc2_weight}},
                      Case{"int8-g32", "int8-g32", {}}, Case{"int8-g0z", "int8-g0", {}},
                      Case{"int4-g32", nullptr, {TensorRole::gate_weight, TensorRole::fc2_weight}},
                      Case{"fp8-row", nullptr, {}}, Case{"fp8-b128", nullptr, {}}),
    [](const auto& of) {
      std::string name = of.param.layers;
      std::replace(name.begin(), name.end(), '-', '_');
      return name + (of.param.head != nullptr ? "_head" : "") +
             (of.param.keep.empty() ? "" : fmt::format("_keeps{}", of.param.keep.size()));
    });

}  // namespace
}  // namespace sluice
