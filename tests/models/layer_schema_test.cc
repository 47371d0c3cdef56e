// The one list of a layer's tensors, against lists and sizes that are written out by hand.
#include "models/layer_schema.h"

#include <gtest/gtest.h>

#include "models/model.h"

namespace sluice {
namespace {

using Role = TensorRole;

std::vector<Role> roles_of(const std::vector<LayerTensor>& tensors) {
  std::vector<Role> roles;
  for (const LayerTensor& tensor : tensors) roles.push_back(tensor.role);
  return roles;
}

TEST(LayerSchemaTest, HasTheTensorsOfLlama) {
  const std::vector<Role> expected = {Role::attention_norm_weight,
                                      Role::q_weight,
                                      Role::k_weight,
                                      Role::v_weight,
                                      Role::out_weight,
                                      Role::ffn_norm_weight,
                                      Role::gate_weight,
                                      Role::fc1_weight,
                                      Role::fc2_weight};
  EXPECT_EQ(roles_of(layer_schema(find_shape("llama-3.2-1b"), 0)), expected);
}

TEST(LayerSchemaTest, HasTheTensorsOfOpt) {
  const std::vector<Role> expected = {Role::attention_norm_weight,
                                      Role::attention_norm_bias,
                                      Role::q_weight,
                                      Role::q_bias,
                                      Role::k_weight,
                                      Role::k_bias,
                                      Role::v_weight,
                                      Role::v_bias,
                                      Role::out_weight,
                                      Role::out_bias,
                                      Role::ffn_norm_weight,
                                      Role::ffn_norm_bias,
                                      Role::fc1_weight,
                                      Role::fc1_bias,
                                      Role::fc2_weight,
                                      Role::fc2_bias};
  EXPECT_EQ(roles_of(layer_schema(find_shape("opt-125m"), 0)), expected);
}

TEST(LayerSchemaTest, HasTheTensorsOfQwen3) {
  const std::vector<Role> expected = {Role::attention_norm_weight,
                                      Role::q_weight,
                                      Role::k_weight,
                                      Role::v_weight,
                                      Role::out_weight,
                                      Role::q_norm_weight,
                                      Role::k_norm_weight,
                                      Role::ffn_norm_weight,
                                      Role::gate_weight,
                                      Role::fc1_weight,
                                      Role::fc2_weight};
  EXPECT_EQ(roles_of(layer_schema(find_shape("qwen3-0.6b"), 0)), expected);
}

/// 32 query heads and 8 KV heads of 64: 2048 + 2 * 512 rows.
TEST(LayerSchemaTest, MatricesAreTheirTensorsRows) {
  const std::vector<LayerMatrix> matrices = layer_matrices(find_shape("llama-3.2-1b"), 0);
  struct Expected {
    LayerWeight weight;
    std::int64_t in, out;
    std::vector<Role> roles;
  };
  const std::vector<Expected> expected = {
      {LayerWeight::qkv, 2048, 3072, {Role::q_weight, Role::k_weight, Role::v_weight}},
      {LayerWeight::out, 2048, 2048, {Role::out_weight}},
      {LayerWeight::gate, 2048, 8192, {Role::gate_weight}},
      {LayerWeight::fc1, 2048, 8192, {Role::fc1_weight}},
      {LayerWeight::fc2, 8192, 2048, {Role::fc2_weight}}};
  ASSERT_EQ(matrices.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(matrices[i].weight, expected[i].weight) << i;
    EXPECT_EQ(matrices[i].in, expected[i].in) << i;
    EXPECT_EQ(matrices[i].out, expected[i].out) << i;
    EXPECT_EQ(roles_of(matrices[i].tensors), expected[i].roles) << i;
  }
}

/// Mixtral 8x7B: 8 experts, each of gate, up and down, and a router of 8 rows.
TEST(LayerSchemaTest, ExpertsHaveTheirTensorsEach) {
  const ModelConfig& config = find_shape("mixtral-8x7b");
  std::int64_t of_experts = 0;
  for (const LayerTensor& tensor : layer_schema(config, 31)) {
    EXPECT_FALSE(tensor.of_each_expert && tensor.is_vector()) << to_string(tensor.role);
    if (tensor.of_each_expert) of_experts += tensor.shape[0] * tensor.shape[1];
    EXPECT_EQ(tensor.id(31, 7).expert, tensor.of_each_expert ? 7 : -1) << to_string(tensor.role);
  }
  EXPECT_EQ(of_experts, 3 * 4096 * 14336);
  const std::vector<LayerMatrix> matrices = layer_matrices(config, 31);
  ASSERT_EQ(matrices.size(), 6U);
  EXPECT_EQ(matrices[5].weight, LayerWeight::router);
  EXPECT_EQ(matrices[5].out, 8);
  EXPECT_FALSE(matrices[5].of_each_expert);
  EXPECT_TRUE(matrices[2].of_each_expert && matrices[3].of_each_expert);
  std::int64_t tensors = 0;
  for (const TensorId id : expected_tensors(config)) tensors += id.layer == 31 ? 1 : 0;
  EXPECT_EQ(tensors, 2 + 4 + 1 + 3 * 8);
}

/// gpt-oss-20b: 32 experts with biases, which are no vectors of the layer, as the router's is.
TEST(LayerSchemaTest, ExpertsMayHaveBiases) {
  const ModelConfig& config = find_shape("gpt-oss-20b");
  std::vector<Role> of_experts;
  std::int64_t vectors = 0;
  for (const LayerTensor& tensor : layer_schema(config, 3)) {
    if (tensor.is_vector()) vectors += tensor.shape.at(0);
    EXPECT_EQ(tensor.is_expert_bias(), tensor.of_each_expert && tensor.shape.size() == 1);
    EXPECT_EQ(tensor.is_expert_bias(), weight_of_bias(tensor.role).has_value());
    if (tensor.is_expert_bias()) of_experts.push_back(tensor.role);
  }
  EXPECT_EQ(of_experts, (std::vector<Role>{Role::gate_bias, Role::fc1_bias, Role::fc2_bias}));
  // Two norms, q, k and v, the output, sinks, the router.
  EXPECT_EQ(vectors, 2 * 2880 + 64 * 64 + 2 * 8 * 64 + 2880 + 64 + 32);
}

/// One layer of two has a dense FFN, of another width.
TEST(LayerSchemaTest, LayersOfAMixtureMayHaveOneFfn) {
  ModelConfig config = find_shape("mixtral-8x7b");
  config.num_layers = 2;
  config.dense_layers = {true, false};
  config.dense_ffn_size = 100;
  for (const LayerMatrix& matrix : layer_matrices(config, 0)) {
    EXPECT_NE(matrix.weight, LayerWeight::router);
    EXPECT_FALSE(matrix.of_each_expert);
    EXPECT_EQ(matrix.out == 100,
              matrix.weight == LayerWeight::gate || matrix.weight == LayerWeight::fc1);
    EXPECT_EQ(matrix.in == 100, matrix.weight == LayerWeight::fc2);
  }
  EXPECT_EQ(layer_matrices(config, 1).size(), 6U);
}

/// GLM-4.5-Air: the first layer has one FFN; the others a router with corrections and, beside the
/// experts, an FFN for all tokens. Vectors of a layer with one FFN are the others' first ones.
TEST(LayerSchemaTest, SharedExpertsStandBesideTheRouter) {
  const ModelConfig& config = find_shape("glm-4.5-air");
  const std::vector<Role> expected = {Role::attention_norm_weight,
                                      Role::q_weight,
                                      Role::q_bias,
                                      Role::k_weight,
                                      Role::k_bias,
                                      Role::v_weight,
                                      Role::v_bias,
                                      Role::out_weight,
                                      Role::ffn_norm_weight,
                                      Role::router_weight,
                                      Role::router_correction,
                                      Role::shared_gate_weight,
                                      Role::shared_fc1_weight,
                                      Role::shared_fc2_weight,
                                      Role::gate_weight,
                                      Role::fc1_weight,
                                      Role::fc2_weight};
  EXPECT_EQ(roles_of(layer_schema(config, 1)), expected);
  const std::vector<LayerMatrix> matrices = layer_matrices(config, 45);
  ASSERT_EQ(matrices.size(), 9U);
  EXPECT_EQ(matrices[7].weight, LayerWeight::shared_fc1);
  EXPECT_EQ(matrices[7].out, 1408);
  EXPECT_EQ(matrices[8].in, 1408);
  EXPECT_FALSE(matrices[8].of_each_expert);
  std::vector<Role> of_experts;
  std::vector<Role> of_one_ffn;
  for (const LayerTensor& tensor : layer_schema(config, 1)) {
    if (tensor.is_vector()) of_experts.push_back(tensor.role);
  }
  for (const LayerTensor& tensor : layer_schema(config, 0)) {
    if (tensor.is_vector()) of_one_ffn.push_back(tensor.role);
  }
  of_one_ffn.push_back(Role::router_correction);
  EXPECT_EQ(of_one_ffn, of_experts);
  EXPECT_EQ(layer_matrices(config, 0).size(), 5U);
}

TEST(LayerSchemaTest, WithoutAGateThereIsNone) {
  for (const LayerMatrix& matrix : layer_matrices(find_shape("opt-125m"), 0))
    EXPECT_NE(matrix.weight, LayerWeight::gate);
}

}  // namespace
}  // namespace sluice
