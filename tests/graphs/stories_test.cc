// A small trained model, greedy in f32, against Hugging Face Transformers
// (tests/golden/make_stories.py). The model is not in this tree: SLUICE_SHARED_DIR names the folder
// that holds models/stories260k.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/engine.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

TEST(StoriesTest, TwoHundredGreedyTokensAreThoseOfTransformers) {
  const char* shared = std::getenv("SLUICE_SHARED_DIR");
  if (shared == nullptr)
    GTEST_SKIP() << "SLUICE_SHARED_DIR names no folder with models/stories260k";
  test::TestModel model(std::string(shared) + "/models/stories260k", DType::f32);
  std::ifstream file(test::data_folder() + "/golden/stories260k.json");
  for (const nlohmann::json& entry : nlohmann::json::parse(file)) {
    const auto expected = entry["greedy"].get<std::vector<std::int32_t>>();
    ASSERT_EQ(expected.size(), 200U);
    const auto prompt = entry["prompt"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(model.generate({prompt}, 200, 1).front(), expected);
  }
}

}  // namespace
}  // namespace sluice
