#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/config_json.h"
#include "models/family.h"
#include "models/model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Folders that Transformers wrote: one or more of each family.
std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(SLUICE_TEST_DATA_DIR "/golden/models")) {
    if (fs::exists(entry.path() / "config.json")) names.push_back(entry.path().filename().string());
  }
  return names;
}

class GoldenModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string folder() { return SLUICE_TEST_DATA_DIR "/golden/models/" + GetParam(); }
};

TEST_P(GoldenModelTest, OpensWithEveryTensorInPlace) {
  const Model model = open_model(folder());
  for (TensorId id : expected_tensors(model.config)) {
    const TensorView view = model.weights->tensor(id);
    EXPECT_EQ(view.shape, expected_shape(model.config, id)) << view.name;
    const Family& family = *find_family(model.config.family);
    const auto part = family.stacked_part == nullptr ? std::nullopt : family.stacked_part(id);
    const std::string name = family.tensor_name(id);
    EXPECT_TRUE(part ? view.name.starts_with(part->stack + "[") : view.name == name) << view.name;
  }
}

TEST_P(GoldenModelTest, SurvivesWritingItsConfigAgain) {
  const ModelConfig config = open_model(folder()).config;
  const std::string text = config_json(config);
  EXPECT_EQ(config_json(parse_config(text, "config.json")), text);
  EXPECT_EQ(num_parameters(parse_config(text, "config.json")), num_parameters(config));
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModelTest, ::testing::ValuesIn(golden_models()), test_name);

TEST(FamiliesTest, AreAllAmongTheGoldenModels) {
  std::set<std::string> seen;
  for (const std::string& name : golden_models()) {
    seen.insert(open_model(SLUICE_TEST_DATA_DIR "/golden/models/" + name).config.family);
  }
  for (const Family* family : families()) EXPECT_TRUE(seen.contains(std::string(family->name)));
}

TEST(FamiliesTest, GiveEveryTensorOfTheirShapesAnotherName) {
  for (const NamedShape& shape : named_shapes()) {
    const Family* family = find_family(shape.config.family);
    if (family == nullptr) continue;
    std::set<std::string> names;
    const auto ids = expected_tensors(shape.config);
    for (TensorId id : ids) names.insert(family->tensor_name(id));
    EXPECT_EQ(names.size(), ids.size()) << shape.name;
  }
}

TEST(FamiliesTest, UsePublishedNames) {
  const auto name = [](const char* family, TensorRole role, std::int64_t layer) {
    return find_family(family)->tensor_name({role, layer});
  };
  EXPECT_EQ(name("opt", TensorRole::position_embedding, -1),
            "model.decoder.embed_positions.weight");
  EXPECT_EQ(name("opt", TensorRole::ffn_norm_bias, 7),
            "model.decoder.layers.7.final_layer_norm.bias");
  EXPECT_EQ(name("opt", TensorRole::final_norm_bias, -1), "model.decoder.final_layer_norm.bias");
  EXPECT_EQ(name("llama", TensorRole::gate_weight, 0), "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(name("mistral", TensorRole::final_norm_weight, -1), "model.norm.weight");
  EXPECT_EQ(name("qwen2", TensorRole::k_bias, 11), "model.layers.11.self_attn.k_proj.bias");
  EXPECT_EQ(name("gpt_oss", TensorRole::router_bias, 5), "model.layers.5.mlp.router.bias");
  EXPECT_EQ(name("gpt_oss", TensorRole::attention_sinks, 5), "model.layers.5.self_attn.sinks");
  EXPECT_EQ(name("qwen3", TensorRole::q_norm_weight, 3), "model.layers.3.self_attn.q_norm.weight");
  EXPECT_EQ(find_family("bloom"), nullptr);
}

}  // namespace
}  // namespace sluice
