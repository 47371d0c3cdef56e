#include "models/weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "models/config_json.h"
#include "models/model.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

TensorView view_of(const std::string& bytes, DType dtype) {
  return {.name = "t",
          .file = "f",
          .dtype = dtype,
          .shape = {static_cast<std::int64_t>(bytes.size() / size_bytes(dtype))},
          .data = std::as_bytes(std::span(bytes))};
}

std::string all_sixteen_bit_patterns() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  return {reinterpret_cast<const char*>(patterns.data()), patterns.size() * 2};
}

/// Bit for bit, but for NaN's payload.
void expect_same(float actual, float expected, std::size_t pattern) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << pattern;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
        << pattern;
  }
}

TEST(ReadFloatsTest, WidensEveryHalfExactly) {
  std::vector<float> values(65536);
  read_floats(view_of(all_sixteen_bit_patterns(), DType::f16), 0, values.size(), values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_same(values[i], half_to_float(static_cast<std::uint16_t>(i)), i);
  }
}

TEST(ReadFloatsTest, WidensEveryBFloat16Exactly) {
  std::vector<float> values(65536);
  read_floats(view_of(all_sixteen_bit_patterns(), DType::bf16), 0, values.size(), values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_same(values[i], std::bit_cast<float>(static_cast<std::uint32_t>(i) << 16), i);
  }
}

TEST(ReadFloatsTest, ReadsUnalignedDataFromTheMiddle) {
  const std::string bytes = "x" + testing::f32_sequence(9);
  TensorView view = view_of(bytes, DType::f32);
  view.data = view.data.subspan(1);
  std::vector<float> values(3);
  read_floats(view, 5, 3, values.data());
  EXPECT_EQ(values, (std::vector<float>{5.0F, 6.0F, 7.0F}));
}

TEST(ReadFloatsTest, RefusesToReadPastTheEnd) {
  const std::string bytes = testing::f32_sequence(4);
  std::vector<float> values(8);
  const auto read = [&](std::size_t first, std::size_t count) {
    return
        [&, first, count] { read_floats(view_of(bytes, DType::f32), first, count, values.data()); };
  };
  testing::expect_error(read(0, 5), {"0 to 5", "it has 4"});
  testing::expect_error(read(5, 0), {"it has 4"});
  testing::expect_error(read(1, SIZE_MAX), {"it has 4"});
  EXPECT_NO_THROW(read(4, 0)());
}

TEST(ExpectedTensorsTest, ListsALlamaInLayerOrder) {
  const ModelConfig config = parse_config(testing::small_llama().dump(), "config.json");
  const auto ids = expected_tensors(config);
  ASSERT_EQ(ids.size(), 1U + 2 * 9 + 2);
  EXPECT_EQ(ids.front().role, TensorRole::token_embedding);
  EXPECT_EQ(ids[1].role, TensorRole::attention_norm_weight);
  EXPECT_EQ(ids[1].layer, 0);
  EXPECT_EQ(ids[10].layer, 1);
  EXPECT_EQ(ids.back().role, TensorRole::lm_head);
  EXPECT_EQ(expected_shape(config, {TensorRole::k_weight, 0}), (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(expected_shape_fields(config, {TensorRole::fc2_weight, 0}),
            "[hidden_size, intermediate_size]");
}

TEST(ExpectedTensorsTest, GivesOpt350mItsProjectionsAndNoFinalNorm) {
  const ModelConfig& config = find_shape("opt-350m");
  std::vector<TensorRole> outside;
  for (TensorId id : expected_tensors(config)) {
    if (id.layer < 0) outside.push_back(id.role);
  }
  EXPECT_EQ(outside, (std::vector{TensorRole::token_embedding, TensorRole::position_embedding,
                                  TensorRole::project_in, TensorRole::project_out}));
  EXPECT_EQ(expected_shape(config, {TensorRole::position_embedding}),
            (std::vector<std::int64_t>{2050, 1024}));
}

TEST(ExpectedTensorsTest, NamesEveryRole) {
  for (int role = 0; role <= static_cast<int>(TensorRole::gate_bias); ++role) {
    EXPECT_FALSE(to_string(static_cast<TensorRole>(role)).empty());
  }
  EXPECT_EQ(to_string(TensorRole::token_embedding), "token_embedding");
  EXPECT_EQ(to_string(TensorRole::gate_bias), "gate_bias");
}

}  // namespace
}  // namespace sluice
