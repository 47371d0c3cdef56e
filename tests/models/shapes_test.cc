#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/model.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

/// As published with the checkpoints, but without what a shape leaves out, and opt-175b (no
/// published checkpoint) and chinchilla-70b (without relative positions) worked by hand.
const std::map<std::string, std::int64_t>& published_parameters() {
  static const std::map<std::string, std::int64_t> counts = {
      {"opt-125m", 125'239'296},
      {"opt-350m", 331'196'416},
      {"opt-1.3b", 1'315'758'080},
      {"opt-2.7b", 2'651'596'800},
      {"opt-6.7b", 6'658'473'984},
      {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},
      {"opt-66b", 65'719'701'504},
      // 96 * (12 * 12288^2 + 13 * 12288) + (50272 + 2050) * 12288 + 2 * 12288
      {"opt-175b", 174'604'468'224},
      {"llama-160m", 162'417'408},
      {"sheared-llama-1.3b", 1'345'423'360},
      {"llama-2-7b", 6'738'415'616},
      {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"qwen2-0.5b", 494'032'768},
      {"qwen2-1.5b", 1'543'714'304},
      {"qwen2-7b", 7'615'616'512},
      {"qwen2-72b", 72'706'203'648},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-8b", 8'190'735'360},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"mistral-7b-v0.3", 7'248'023'552},
      {"mixtral-8x7b", 46'702'792'704},
      {"mixtral-8x22b", 140'630'071'296},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
      // Without the layer that predicts a second token: as the last one, with a projection from
      // twice as wide, three norms, an embedding and a head.
      {"glm-4.5-air",
       110'468'824'832 - (109'051'904 + 14'336 + 8192 + 128 * 4096 + 128 + 129L * 3 * 1408 * 4096) -
           (2 * 4096 * 4096 + 3 * 4096 + 2 * 151'552L * 4096)},
      // Without each layer's norms of q and k. As published in FP8 it has a scale for 128 x 128
      // weights of each expert and of attention.
      {"minimax-m2", 228'703'644'928 - 62 * (6144 + 1024) -
                         62 * (256 * 3 * 24 * 12 + (2 * 24 * 48 + 2 * 24 * 8))},
      // Without the norm after its embedding.
      {"bloom-176b", 176'247'271'424 - 28'672},
      // 80 * (4 * 8192^2 + 2 * 8192 * 32768 + 2 * 8192) + 32000 * 8192 + 8192
      {"chinchilla-70b", 64'687'972'352},
  };
  return counts;
}

TEST(ShapesTest, HaveTheirPublishedParameterCounts) {
  for (const NamedShape& shape : named_shapes()) {
    ASSERT_TRUE(published_parameters().contains(shape.name)) << shape.name;
    EXPECT_EQ(num_parameters(shape.config), published_parameters().at(shape.name)) << shape.name;
  }
  EXPECT_EQ(named_shapes().size(), published_parameters().size());
}

TEST(ShapesTest, AreConsistent) {
  for (const NamedShape& shape : named_shapes()) {
    EXPECT_NO_THROW(check_config(shape.config, shape.name));
    EXPECT_GT(shape.config.max_positions, 0) << shape.name;
  }
}

TEST(ShapesTest, KeepEveryFieldThroughTheirConfigJson) {
  for (const NamedShape& shape : named_shapes()) {
    if (find_family(shape.config.family) == nullptr) continue;
    const std::string text = config_json(shape.config);
    const ModelConfig again = parse_config(text, shape.name);
    EXPECT_EQ(config_json(again), text) << shape.name;
    EXPECT_EQ(again.norm_eps, shape.config.norm_eps) << shape.name;
    EXPECT_EQ(again.norm_place, shape.config.norm_place) << shape.name;
    EXPECT_EQ(again.final_norm, shape.config.final_norm) << shape.name;
    EXPECT_EQ(again.activation, shape.config.activation) << shape.name;
    EXPECT_EQ(again.position, shape.config.position) << shape.name;
    EXPECT_EQ(again.position_offset, shape.config.position_offset) << shape.name;
    EXPECT_EQ(again.qk_norm, shape.config.qk_norm) << shape.name;
    EXPECT_EQ(again.num_experts, shape.config.num_experts) << shape.name;
    EXPECT_EQ(again.experts_per_token, shape.config.experts_per_token) << shape.name;
    EXPECT_EQ(again.norm_chosen, shape.config.norm_chosen) << shape.name;
    EXPECT_EQ(again.router, shape.config.router) << shape.name;
    EXPECT_EQ(again.num_groups, shape.config.num_groups) << shape.name;
    EXPECT_EQ(again.groups_per_token, shape.config.groups_per_token) << shape.name;
    EXPECT_EQ(again.routed_scaling, shape.config.routed_scaling) << shape.name;
    EXPECT_EQ(again.shared_ffn_size, shape.config.shared_ffn_size) << shape.name;
    EXPECT_EQ(again.rotary_dim, shape.config.rotary_dim) << shape.name;
    EXPECT_EQ(again.sliding_window_tokens, shape.config.sliding_window_tokens) << shape.name;
    EXPECT_EQ(again.rope_theta, shape.config.rope_theta) << shape.name;
    EXPECT_EQ(again.rope_scaling.has_value(), shape.config.rope_scaling.has_value()) << shape.name;
    EXPECT_EQ(again.eos_token_ids, shape.config.eos_token_ids) << shape.name;
    EXPECT_EQ(num_parameters(again), num_parameters(shape.config)) << shape.name;
  }
}

TEST(ShapesTest, AreFoundByName) {
  EXPECT_EQ(find_shape("llama-3.1-8b").num_kv_heads, 8);
  EXPECT_EQ(find_shape("mistral-7b-v0.1").sliding_window_tokens, 4096);
}

TEST(ShapesTest, MixturesHaveExpertsAndWindows) {
  const ModelConfig& qwen3 = find_shape("qwen3-30b-a3b");
  EXPECT_EQ(qwen3.num_experts, 128);
  EXPECT_EQ(qwen3.experts_per_token, 8);
  EXPECT_EQ(qwen3.num_full_attention_layers(), 0);  // and no window
  EXPECT_EQ(qwen3.window_tokens(0), 0);
  for (const char* name : {"gpt-oss-20b", "gpt-oss-120b"}) {
    const ModelConfig& config = find_shape(name);
    EXPECT_EQ(config.experts_per_token, 4) << name;
    EXPECT_EQ(config.window_tokens(0), 128) << name;
    EXPECT_EQ(config.window_tokens(1), 0) << name;
    EXPECT_EQ(config.num_full_attention_layers(), config.num_layers / 2) << name;
    EXPECT_NEAR(config.rope_scaling->attention_factor, 0.1 * std::log(32.0) + 1, 1e-6) << name;
  }
}

/// 8 of 128 experts, the shared one, attention and router in 45 layers, one dense layer: 12 billion
/// weights beside embedding and head.
TEST(ShapesTest, GlmAirHas12BillionActiveParameters) {
  const ModelConfig& config = find_shape("glm-4.5-air");
  EXPECT_EQ(config.router, RouterKind::sigmoid);
  EXPECT_FALSE(config.has_experts(0));
  EXPECT_TRUE(config.has_experts(1));
  ModelConfig of_a_token = config;
  of_a_token.num_experts = config.experts_per_token;
  const auto head = static_cast<double>(config.vocab_size * config.hidden_size);
  EXPECT_NEAR(static_cast<double>(num_parameters(of_a_token)) - 2 * head, 12.16e9, 0.1e9);
  EXPECT_EQ(find_shape("minimax-m2").router, RouterKind::sigmoid);
  EXPECT_TRUE(find_shape("minimax-m2").router_correction);
}

TEST(ShapesTest, ListTheNearestNameFirst) {
  testing::expect_error(
      [] { find_shape("lama-3.1-8b"); },
      {"no shape is called 'lama-3.1-8b'", "known are llama-3.1-8b, ", "opt-125m"});
  testing::expect_error([] { find_shape("opt-30B"); }, {"known are opt-30b, "});
  testing::expect_error([] { find_shape(""); }, {"no shape is called ''"});
}

}  // namespace
}  // namespace sluice
