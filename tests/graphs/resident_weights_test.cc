#include "graphs/resident_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/engine.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

std::uint64_t bytes_of(const DataHandle& handle) {
  return handle ? starpu_data_get_size(handle.get()) : 0;
}

/// Everything in main memory.
MemoryPlan none_resident(const LoadedModel& model) {
  LayerHomes homes;
  homes.weights.fill(Tier::ddr);
  MemoryPlan memory;
  memory.layers.assign(static_cast<std::size_t>(model.config().num_layers), homes);
  return memory;
}

/// What is predicted of a plan before loading, and what the loaded model has.
void expect_equal_sizes(const LoadedModel& model, DType dtype, const MemoryPlan& memory) {
  const WeightSizes sizes(model.config(), dtype,
                          bytes_of(model.token_table) + bytes_of(model.positions));
  EXPECT_EQ(sizes.resident(memory), ResidentWeights(model, memory).size_bytes());
}

class WeightSizesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(WeightSizesTest, AreThoseOfTheLoadedModel) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const test::TestModel model(test::golden_folder(GetParam()), dtype);
    const MemoryPlan none = none_resident(model.loaded());
    expect_equal_sizes(model.loaded(), dtype, none);
    for (const WeightKind kind :
         {WeightKind::vectors, WeightKind::out_proj, WeightKind::fc1, WeightKind::fc2}) {
      MemoryPlan memory = none;
      memory.layers.back().weights.at(static_cast<std::size_t>(kind)) = Tier::hbm;
      expect_equal_sizes(model.loaded(), dtype, memory);
    }
    MemoryPlan tables = none;
    tables.embedding = Tier::hbm;
    expect_equal_sizes(model.loaded(), dtype, tables);
    MemoryPlan all = none;
    all.embedding = all.lm_head = Tier::hbm;
    for (LayerHomes& homes : all.layers) homes.weights.fill(Tier::hbm);
    expect_equal_sizes(model.loaded(), dtype, all);
    const WeightSizes sizes(model.loaded().config(), dtype, 0);
    std::vector<std::uint64_t> bytes;
    for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
      const LayerWeights& layer = model.loaded().layers()[i];
      std::uint64_t of_layer = bytes_of(layer.vectors);
      for (const WeightHandle& weight : layer.matrices) of_layer += bytes_of(weight.data);
      for (const DataHandle& chunk : layer.experts.chunks) of_layer += bytes_of(chunk);
      EXPECT_EQ(sizes.layers[i].total(), of_layer) << i;
      bytes.push_back(of_layer);
    }
    std::uint64_t largest_pair = 0;  // the first layer comes behind the last one
    for (std::size_t i = 0; i < bytes.size(); ++i)
      largest_pair = std::max(largest_pair, bytes[i] + bytes[(i + 1) % bytes.size()]);
    EXPECT_EQ(sizes.largest_pair(), largest_pair);
    EXPECT_EQ(sizes.head, bytes_of(model.loaded().head.data));
  }
}

/// They are held whatever their layers' homes are, with their places.
TEST(HotExpertSizesTest, AreThoseOfTheLoadedModel) {
  WeightHomes homes;
  homes.hot_experts = {{1}, {0, 2}};
  const LoadedModel model(open_model(test::golden_folder("mixtral")), DType::f32,
                          test::runtime().setup_pool(), {}, homes);
  MemoryPlan memory = none_resident(model);
  memory.hot_experts = homes.hot_experts;
  expect_equal_sizes(model, DType::f32, memory);
  const std::uint64_t expert_bytes = model.layers().front().experts.layout.size_bytes();
  EXPECT_EQ(ResidentWeights(model, memory).size_bytes(), 3 * expert_bytes + 2 * 4 * 4);
  for (const WeightKind kind : {WeightKind::fc1, WeightKind::fc2})
    memory.layers.back().weights.at(static_cast<std::size_t>(kind)) = Tier::hbm;
  expect_equal_sizes(model, DType::f32, memory);
  EXPECT_EQ(ResidentWeights(model, memory).size_bytes(), 5 * expert_bytes + 2 * 4 * 4);
}

INSTANTIATE_TEST_SUITE_P(Golden, WeightSizesTest, ::testing::ValuesIn(test::golden_cases()),
                         [](const auto& of) { return test::golden_test_name(of); });

}  // namespace
}  // namespace sluice
