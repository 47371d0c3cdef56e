// Rotary frequencies against Hugging Face Transformers, for every form of config.json's fields
// (tests/golden/make_rope.py).
#include "graphs/rope.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/config_json.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

using nlohmann::json;

json golden_rope() {
  std::ifstream file(test::data_folder() + "/golden/rope.json");
  return json::parse(file);
}

json config_of(const json& entry) {
  json fields = entry["fields"];
  fields["model_type"] = "llama";
  return fields;
}

TEST(RopeTest, FrequenciesAreThoseOfTransformers) {
  int compared = 0;
  for (const json& entry : golden_rope()) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const std::string text = config_of(entry).dump();
    if (entry["frequencies"].is_null()) {
      EXPECT_THROW(parse_config(text, "config.json"), Error);
      continue;
    }
    ++compared;
    const ModelConfig config = parse_config(text, "config.json");
    const auto expected = entry["frequencies"].get<std::vector<double>>();
    const std::vector<float> frequencies = rope_frequencies(config);
    ASSERT_EQ(frequencies.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(frequencies[i], expected[i], 1e-6 * expected[i]) << i;
    const float factor = config.rope_scaling ? config.rope_scaling->attention_factor : 1.0F;
    EXPECT_NEAR(factor, entry["attention_factor"].get<double>(), 1e-6);
  }
  EXPECT_GT(compared, 30);
}

TEST(RopeTest, SurvivesBeingWrittenAgain) {
  for (const json& entry : golden_rope()) {
    if (entry["frequencies"].is_null()) continue;
    SCOPED_TRACE(entry["name"].get<std::string>());
    const ModelConfig config = parse_config(config_of(entry).dump(), "config.json");
    const std::string text = config_json(config);
    const ModelConfig again = parse_config(text, "again");
    EXPECT_EQ(config_json(again), text);
    EXPECT_EQ(rope_frequencies(again), rope_frequencies(config));
    EXPECT_EQ(again.max_positions, config.max_positions);
  }
}

}  // namespace
}  // namespace sluice
