// Weights in every form that checkpoints have them, against what the libraries make of them.

#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "models/model.h"
#include "models/quantized/method.h"
#include "models/quantized/quantize_rows.h"

namespace sluice {
namespace {

using nlohmann::json;

std::string folder_of(const std::string& name) {
  return test::data_folder() + "/golden/quantized/" + name;
}

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

Safetensors open_file(const std::string& folder, const std::string& file) {
  return Safetensors::parse(ModelFiles::open(folder).map(file).value());
}

template <typename T>
std::vector<T> values_of(const StoredTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

/// Our values rounded to the type that a library gives, as bits.
std::vector<std::uint32_t> rounded(const std::vector<float>& values, const std::string& dtype) {
  const auto type = dtype == "F16"    ? WeightFormat::Scales::f16
                    : dtype == "BF16" ? WeightFormat::Scales::bf16
                                      : WeightFormat::Scales::f32;
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(to_scale(type, value));
  return bits;
}

std::vector<std::uint32_t> bits_of(const StoredTensor& tensor) {
  if (tensor.dtype == "F32") return values_of<std::uint32_t>(tensor);
  const auto halves = values_of<std::uint16_t>(tensor);
  return {halves.begin(), halves.end()};
}

class QuantizedGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedGoldenTest, GivesTheLibrarysValues) {
  const std::string folder = folder_of(GetParam());
  const json fields = read_json(folder + "/config.json");
  const auto config = parse_quantization_config(
      ConfigReader(fields.at("quantization_config"), "config.json", "quantization_config."));
  const auto checkpoint = Checkpoint::open(ModelFiles::open(folder));
  const auto expected = open_file(folder, "expected.safetensors");
  ASSERT_FALSE(expected.tensors().empty());
  for (const auto& [module, entry] : expected.tensors()) {
    const auto tensor =
        quantization_method(config).find(config, checkpoint, {module, "Linear", entry.shape});
    ASSERT_NE(tensor, nullptr) << module;
    ASSERT_EQ(tensor->shape(), entry.shape);
    EXPECT_EQ(tensor->format().has_zero_points, GetParam().find("middle") == std::string::npos &&
                                                    config.schemes.front().format.has_zero_points);
    std::vector<float> values;
    for (std::int64_t row = 0; row < tensor->num_rows(); row += 11) {  // bands of odd sizes
      CodedRows coded;
      const std::int64_t rows = std::min<std::int64_t>(11, tensor->num_rows() - row);
      tensor->read(row, rows, coded);
      std::vector<float> band(static_cast<std::size_t>(rows * tensor->in()));
      dequantize(tensor->format(), tensor->in(), coded, band);
      values.insert(values.end(), band.begin(), band.end());
    }
    EXPECT_EQ(rounded(values, entry.dtype), bits_of(expected.stored(module))) << module;
  }
}

std::vector<std::string> cases() {
  return read_json(folder_of("cases.json")).get<std::vector<std::string>>();
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedGoldenTest, ::testing::ValuesIn(cases()),
                         test::golden_test_name<::testing::TestParamInfo<std::string>>);

/// Whole models, whose logits other tests compare.
TEST(QuantizedModelsTest, HaveTheFormatsThatTheyWereMadeWith) {
  const std::string root = test::data_folder() + "/golden/quantized_models/";
  for (const json& name : read_json(root + "cases.json")) {
    const std::string folder = root + name.get<std::string>();
    const Model model = open_model(folder);
    std::set<std::string> formats;
    for (const TensorId id : expected_tensors(model.config)) {
      const auto tensor = model.weights->quantized(id);
      if (tensor == nullptr) continue;
      formats.insert(to_string(tensor->format()));
      CodedRows rows;
      EXPECT_NO_THROW(tensor->read(0, tensor->num_rows(), rows));
    }
    EXPECT_EQ(formats, read_json(folder + "/expected.json")["formats"].get<std::set<std::string>>())
        << folder;
  }
}

/// The rules of quantize_rows against the same in NumPy.
class RulesGoldenTest : public ::testing::TestWithParam<std::tuple<const char*, ScaleSearch>> {};

TEST_P(RulesGoldenTest, GivesTheCodesOfAnIndependentProgram) {
  const auto& [name, search] = GetParam();
  const WeightFormat format = parse_weight_format(name);
  const auto file = open_file(folder_of(""), "rules.safetensors");
  const StoredTensor input = file.stored(format.group_rows != 1 ? "block_rows"
                                         : format.group == 0    ? "odd_rows"
                                                                : "rows");
  const auto rows = values_of<float>(input);
  CodedRows coded;
  quantize_rows(format, input.shape[1], rows, search, coded);
  const std::string prefix = std::string(name) + (search == ScaleSearch::mse ? ".mse." : ".none.");
  EXPECT_EQ(coded.codes, values_of<std::uint8_t>(file.stored(prefix + "codes")));
  EXPECT_EQ(coded.scales, values_of<std::uint32_t>(file.stored(prefix + "scales")));
  if (format.has_zero_points) {
    EXPECT_EQ(coded.zero_points, values_of<std::uint8_t>(file.stored(prefix + "zero_points")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RulesGoldenTest,
    ::testing::Combine(::testing::Values("int4-g32", "int4-g128z", "int4-g0", "int4-g64z",
                                         "int8-g32", "int8-g0z", "fp8-row", "fp8-b128"),
                       ::testing::Values(ScaleSearch::none, ScaleSearch::mse)));

}  // namespace
}  // namespace sluice
