#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/unsupported_fields.h"
#include "models/weights.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::small_llama;

ModelConfig parse(const json& fields) { return parse_config(fields.dump(), "config.json"); }

json with(json fields, const std::string& key, const json& value) {
  fields[key] = value;
  return fields;
}

json without(json fields, const std::string& key) {
  fields.erase(key);
  return fields;
}

json small_opt() {
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"hidden_size", 8},
          {"num_hidden_layers", 2},
          {"ffn_dim", 32},
          {"num_attention_heads", 2},
          {"vocab_size", 10},
          {"max_position_embeddings", 16}};
}

json small_of(const std::string& architecture) {
  json fields = without(small_llama(), "model_type");
  fields["architectures"] = {architecture};
  return fields;
}

json llama3_rope() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 32}};
}

void expect_refused(const json& fields, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse(fields); }, parts);
}

TEST(ConfigTest, ReadsALlama) {
  const ModelConfig config = parse(small_llama());
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.embed_size, 8);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(config.ffn_size, 12);
  EXPECT_EQ(config.vocab_size, 10);
  EXPECT_EQ(config.max_positions, 64);
  EXPECT_EQ(config.norm, NormKind::rms_norm);
  EXPECT_EQ(config.norm_eps, 1e-5F);
  EXPECT_EQ(config.activation, Activation::silu);
  EXPECT_EQ(config.position, PositionKind::rope);
  EXPECT_EQ(config.rope_theta, 10000.0F);
  EXPECT_TRUE(config.gated_ffn);
  EXPECT_FALSE(config.qkv_bias || config.out_bias || config.ffn_bias);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_EQ(config.stored_dtype, DType::f32);
}

TEST(ConfigTest, TakesTransformersDefaultsForWhatIsMissing) {
  const ModelConfig llama =
      parse(without(without(small_llama(), "rms_norm_eps"), "num_key_value_heads"));
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.norm_eps, 1e-6F);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, (std::vector<std::int32_t>{2}));
  const ModelConfig opt = parse(small_opt());
  EXPECT_TRUE(opt.tied_embeddings);
  EXPECT_EQ(opt.bos_token_id, 2);
  const ModelConfig qwen = parse(small_of("Qwen2ForCausalLM"));
  EXPECT_FALSE(qwen.tied_embeddings);
  EXPECT_FALSE(qwen.bos_token_id.has_value());
  EXPECT_TRUE(qwen.eos_token_ids.empty());
  EXPECT_EQ(parse(small_of("MistralForCausalLM")).sliding_window_tokens, 4096);
}

TEST(ConfigTest, FindsTheFamilyByModelTypeWithoutArchitectures) {
  EXPECT_EQ(parse(without(small_llama(), "architectures")).family, "llama");
}

TEST(ConfigTest, ReadsLlamaBiases) {
  const ModelConfig config =
      parse(with(with(small_llama(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(config.qkv_bias && config.out_bias && config.ffn_bias);
  const auto shape = expected_shape(config, {TensorRole::gate_bias, 0});
  EXPECT_EQ(shape, (std::vector<std::int64_t>{12}));
}

json small_mixtral() {
  return with(with(with(small_llama(), "model_type", "mixtral"), "num_local_experts", 6),
              "num_experts_per_tok", 3);
}

TEST(ConfigTest, ReadsExperts) {
  const json fields = small_mixtral();
  const ModelConfig config = parse(with(fields, "architectures", {"MixtralForCausalLM"}));
  EXPECT_EQ(config.num_experts, 6);
  EXPECT_EQ(config.experts_per_token, 3);
  EXPECT_TRUE(config.has_experts(0));
  EXPECT_TRUE(config.norm_chosen);
  EXPECT_EQ(config.router, RouterKind::softmax_first);
  const TensorId expert{TensorRole::fc2_weight, 0, 5};
  EXPECT_EQ(expected_shape(config, expert),
            (std::vector<std::int64_t>{config.hidden_size, config.ffn_size}));
  EXPECT_EQ(expected_shape(config, {TensorRole::router_weight, 0}),
            (std::vector<std::int64_t>{6, config.hidden_size}));
  // Both names are one field.
  EXPECT_EQ(parse(with(without(fields, "num_local_experts"), "num_experts", 5)).num_experts, 5);
}

TEST(ConfigTest, RefusesNumbersOfExpertsThatDoNotFit) {
  const json fields = small_mixtral();
  expect_error([&] { parse(with(fields, "num_experts_per_tok", 0)); },
               {"config.json", "num_experts_per_tok", "0"});
  expect_error([&] { parse(with(fields, "num_experts_per_tok", 7)); },
               {"num_experts_per_tok is 7", "1 to 6"});
  expect_error([&] { parse(with(fields, "num_local_experts", 4097)); },
               {"num_local_experts is 4097", "1 to 4096"});
  expect_error([&] { parse(with(fields, "num_experts", 8)); },
               {"num_local_experts is 6", "num_experts 8"});
  expect_error([&] { parse(with(small_llama(), "num_local_experts", 4)); },
               {"num_local_experts", "not supported"});
}

json small_glm() {
  json fields = with(small_llama(), "model_type", "glm4_moe");
  fields.erase("architectures");
  fields.update({{"num_hidden_layers", 3},
                 {"head_dim", 20},
                 {"n_routed_experts", 12},
                 {"num_experts_per_tok", 4},
                 {"n_shared_experts", 2},
                 {"moe_intermediate_size", 10},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"routed_scaling_factor", 2.5},
                 {"use_qk_norm", true},
                 {"attention_bias", true}});
  return fields;
}

TEST(ConfigTest, ReadsSigmoidRoutersAndSharedExperts) {
  const ModelConfig config = parse(small_glm());
  EXPECT_EQ(config.family, "glm4_moe");
  EXPECT_EQ(config.router, RouterKind::sigmoid);
  EXPECT_TRUE(config.router_correction);
  EXPECT_TRUE(config.norm_chosen);
  EXPECT_EQ(config.num_experts, 12);
  EXPECT_EQ(config.num_groups, 4);
  EXPECT_EQ(config.groups_per_token, 2);
  EXPECT_EQ(config.routed_scaling, 2.5F);
  EXPECT_EQ(config.shared_ffn_size, 20);
  EXPECT_EQ(config.ffn_size_of(0), 12);  // the first layer has one FFN
  EXPECT_EQ(config.ffn_size_of(1), 10);
  EXPECT_TRUE(config.qk_norm && config.qkv_bias && !config.out_bias);
  EXPECT_EQ(expected_shape(config, {TensorRole::router_correction, 1}),
            (std::vector<std::int64_t>{12}));
  EXPECT_EQ(expected_shape(config, {TensorRole::shared_fc2_weight, 1}),
            (std::vector<std::int64_t>{config.hidden_size, 20}));
  EXPECT_EQ(find_family("glm4_moe")->tensor_name({TensorRole::router_correction, 1}),
            "model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(find_family("glm4_moe")->tensor_name({TensorRole::shared_fc1_weight, 2}),
            "model.layers.2.mlp.shared_experts.up_proj.weight");
}

/// Half of a head, unless a field says otherwise; rope_scaling's own counts before all others.
TEST(ConfigTest, ReadsHowMuchOfAHeadRotates) {
  const json fields = small_glm();
  EXPECT_EQ(parse(fields).rotary_dim, 10);
  EXPECT_EQ(parse(with(fields, "partial_rotary_factor", 0.3)).rotary_dim, 6);
  EXPECT_EQ(parse(with(fields, "partial_rotary_factor", 1.0)).rotary_dim, 20);
  const json v5 = {{"rope_type", "default"}, {"rope_theta", 7.0}, {"partial_rotary_factor", 0.2}};
  EXPECT_EQ(parse(with(fields, "rope_parameters", v5)).rotary_dim, 4);
  const json scaling = {{"rope_type", "linear"}, {"factor", 2.0}};
  const json both = with(with(fields, "rope_parameters", v5), "rope_scaling", scaling);
  EXPECT_EQ(parse(both).rotary_dim, 10);
  expect_refused(with(fields, "partial_rotary_factor", 0.26), {"0.26 of head_dim 20", "5"});
  expect_refused(with(fields, "partial_rotary_factor", 0), {"0 of head_dim 20"});
  expect_refused(with(fields, "partial_rotary_factor", 1.5), {"partial_rotary_factor is 1.5"});
}

TEST(ConfigTest, RefusesGroupsOfExpertsThatDoNotFit) {
  const json fields = small_glm();
  expect_refused(with(fields, "n_group", 5), {"n_group is 5", "divides n_routed_experts (12)"});
  expect_refused(with(fields, "n_group", 0), {"n_group is 0"});
  expect_refused(with(fields, "n_group", 12), {"n_group is 12", "at most 6"});
  expect_refused(with(fields, "topk_group", 0), {"topk_group is 0"});
  expect_refused(with(fields, "topk_group", 5), {"topk_group is 5", "1 to n_group (4)"});
  expect_refused(with(fields, "num_experts_per_tok", 7),
                 {"num_experts_per_tok is 7", "1 to 6", "topk_group (2)"});
  EXPECT_EQ(parse(with(fields, "num_experts_per_tok", 6)).experts_per_token, 6);
  for (const json& factor : {json(0), json(-1.5), json(1e300)})
    expect_refused(with(fields, "routed_scaling_factor", factor), {"routed_scaling_factor is "});
  expect_refused(with(fields, "first_k_dense_replace", 3),
                 {"first_k_dense_replace is 3", "0 to 2"});
  expect_refused(with(fields, "n_routed_experts", 4097), {"n_routed_experts is 4097"});
}

TEST(ConfigTest, ReadsHeadDimThatIsNotHiddenSizeOverHeads) {
  const ModelConfig config = parse(with(small_llama(), "head_dim", 6));
  EXPECT_EQ(config.q_size(), 24);
  EXPECT_EQ(config.kv_size(), 12);
}

TEST(ConfigTest, ReadsEosAsOneIdOrAListOrNone) {
  EXPECT_EQ(parse(with(small_llama(), "eos_token_id", 7)).eos_token_ids,
            (std::vector<std::int32_t>{7}));
  EXPECT_EQ(parse(with(small_llama(), "eos_token_id", {7, 8})).eos_token_ids,
            (std::vector<std::int32_t>{7, 8}));
  EXPECT_TRUE(parse(with(small_llama(), "eos_token_id", nullptr)).eos_token_ids.empty());
  expect_refused(with(small_llama(), "eos_token_id", "</s>"),
                 {"eos_token_id", "\"</s>\"", "token id"});
  // No token has such an id, so nothing ends a text.
  EXPECT_TRUE(parse(with(small_llama(), "eos_token_id", -1)).eos_token_ids.empty());
  EXPECT_EQ(parse(with(small_llama(), "eos_token_id", {-1, 8})).eos_token_ids,
            (std::vector<std::int32_t>{8}));
  EXPECT_FALSE(parse(with(small_llama(), "bos_token_id", -1)).bos_token_id.has_value());
}

TEST(ConfigTest, ReadsRopeInOldAndNewStyle) {
  json old_style = with(small_llama(), "rope_theta", 500000.0);
  old_style["rope_scaling"] = llama3_rope();
  json new_style = without(small_llama(), "rope_theta");
  new_style["rope_parameters"] = with(llama3_rope(), "rope_theta", 500000.0);
  json oldest_style = old_style;
  oldest_style["rope_scaling"].erase("rope_type");
  oldest_style["rope_scaling"]["type"] = "llama3";
  for (const json& fields : {old_style, new_style, oldest_style}) {
    const ModelConfig config = parse(fields);
    EXPECT_EQ(config.rope_theta, 500000.0F);
    ASSERT_TRUE(config.rope_scaling.has_value());
    EXPECT_EQ(config.rope_scaling->factor, 8.0F);
    EXPECT_EQ(config.rope_scaling->low_freq_factor, 1.0F);
    EXPECT_EQ(config.rope_scaling->high_freq_factor, 4.0F);
    EXPECT_EQ(config.rope_scaling->original_max_positions, 32);
  }
}

TEST(ConfigTest, TakesNullAndDefaultRopeAsNoScaling) {
  EXPECT_FALSE(parse(with(small_llama(), "rope_scaling", nullptr)).rope_scaling.has_value());
  EXPECT_FALSE(
      parse(with(small_llama(), "rope_scaling", {{"type", "default"}})).rope_scaling.has_value());
  const json plain = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  EXPECT_EQ(parse(with(small_llama(), "rope_parameters", plain)).rope_theta, 7.0F);
}

TEST(ConfigTest, RefusesOtherRopeScalingByName) {
  for (const char* type : {"mrope", "su", "axial", "ntk"}) {
    expect_refused(with(small_llama(), "rope_scaling", {{"type", type}, {"factor", 2.0}}),
                   {"rope_scaling.type", type, "llama3", "yarn"});
    expect_refused(with(small_llama(), "rope_parameters", {{"rope_type", type}, {"factor", 2.0}}),
                   {"rope_parameters.rope_type", type});
  }
  expect_refused(with(small_llama(), "rope_scaling", {{"rope_type", nullptr}, {"factor", 2.0}}),
                 {"rope_scaling.rope_type"});
  expect_refused(with(small_llama(), "partial_rotary_factor", 0.5),
                 {"partial_rotary_factor is 0.5"});
  expect_refused(with(small_llama(), "rope_parameters", {{"partial_rotary_factor", 0.5}}),
                 {"rope_parameters.partial_rotary_factor is 0.5"});
  expect_refused(with(small_llama(), "rope_scaling", without(llama3_rope(), "factor")),
                 {"rope_scaling.factor is missing"});
  expect_refused(with(small_llama(), "rope_scaling", with(llama3_rope(), "low_freq_factor", 4.0)),
                 {"high_freq_factor", "more than low_freq_factor"});
  const json longrope = {{"rope_type", "longrope"}, {"short_factor", {1.0, 2.0}}};
  expect_refused(with(small_llama(), "rope_scaling", longrope),
                 {"rope_scaling.short_factor", "1 numbers (head_dim / 2)"});
}

TEST(ConfigTest, ReachesAsFarAsTheRopeTypeSays) {
  const auto positions = [](const json& rope) {
    return parse(with(small_llama(), "rope_scaling", rope)).max_positions;
  };
  EXPECT_EQ(positions({{"type", "linear"}, {"factor", 2.5}}), 160);
  EXPECT_EQ(positions({{"type", "dynamic"}, {"factor", 2.0}}), 64);
  EXPECT_EQ(positions({{"type", "yarn"}, {"factor", 4.0}}), 256);
  EXPECT_EQ(
      positions({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}}), 64);
  EXPECT_EQ(positions({{"type", "longrope"},
                       {"short_factor", {1.0}},
                       {"long_factor", {2.0}},
                       {"original_max_position_embeddings", 16}}),
            16);
}

TEST(ConfigTest, ReadsRopeNestedByLayerTypeWhereAllAreEqual) {
  const json each = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const json same = {{"full_attention", each}, {"sliding_attention", each}};
  EXPECT_EQ(parse(with(small_llama(), "rope_parameters", same)).rope_theta, 5e5F);
  const json yarn = {{"full_attention", {{"rope_type", "yarn"}, {"factor", 2.0}}}};
  EXPECT_EQ(parse(with(small_llama(), "rope_scaling", yarn)).rope_scaling->kind, RopeKind::yarn);

  json differing = same;
  differing["sliding_attention"]["rope_theta"] = 1e4;
  expect_refused(with(small_llama(), "rope_parameters", differing),
                 {"rope_parameters.sliding_attention", "full_attention", "differs"});
  expect_refused(with(small_llama(), "rope_parameters", with(same, "rope_theta", 7.0)),
                 {"rope_parameters.rope_theta is 7.0", "JSON object"});
  expect_refused(with(small_llama(), "rope_parameters", with(same, "chunked_attention", nullptr)),
                 {"rope_parameters.chunked_attention"});
}

TEST(ConfigTest, RefusesFieldsThatWouldChangeTheResult) {
  for (const UnsupportedField& field : unsupported_fields()) {
    const std::string name(field.name);
    EXPECT_NO_THROW(parse(with(small_llama(), name, nullptr))) << name;
    if (!field.neutral.empty()) {
      EXPECT_NO_THROW(parse(with(small_llama(), name, json::parse(field.neutral)))) << name;
    }
    expect_refused(with(small_llama(), name, 0.5), {name, "0.5", "not supported"});
  }
  EXPECT_NO_THROW(parse(with(small_llama(), "logit_scale", 1.0)));
  const json mistral = small_of("MistralForCausalLM");
  EXPECT_NO_THROW(parse(with(mistral, "attention_bias", false)));
  expect_refused(with(mistral, "attention_bias", true), {"attention_bias is true"});
}

TEST(ConfigTest, ToleratesNumbersThatAreNoneInFieldsNobodyReads) {
  std::string text = small_llama().dump();
  text.pop_back();
  const std::string odd = text + R"(,"unread": [NaN, -Infinity], "more": "NaN \" Infinity"})";
  EXPECT_EQ(parse_config(odd, "config.json").hidden_size, 8);
  for (const char* value : {"NaN", "Infinity", "-Infinity"}) {
    const std::string needed = text + ",\"rms_norm_eps\": " + value + "}";
    expect_error([&] { parse_config(needed, "config.json"); }, {"rms_norm_eps", value});
  }
}

TEST(ConfigTest, ReadsDtypeInOldAndNewStyle) {
  const json bare = without(small_llama(), "torch_dtype");
  EXPECT_EQ(parse(bare).stored_dtype, DType::f32);
  EXPECT_EQ(parse(with(bare, "torch_dtype", "bfloat16")).stored_dtype, DType::bf16);
  EXPECT_EQ(parse(with(bare, "dtype", "float16")).stored_dtype, DType::f16);
  EXPECT_EQ(parse(with(bare, "torch_dtype", "torch.bfloat16")).stored_dtype, DType::bf16);
  EXPECT_NO_THROW(parse(with(bare, "torch_dtype", "auto")));
  expect_refused(with(bare, "dtype", "float8_e4m3fn"), {"dtype is \"float8_e4m3fn\"", "bfloat16"});
}

TEST(ConfigTest, ReadsOptVariants) {
  const ModelConfig plain = parse(small_opt());
  EXPECT_EQ(plain.norm_place, NormPlace::pre);
  EXPECT_TRUE(plain.final_norm && plain.qkv_bias && plain.out_bias && plain.ffn_bias &&
              plain.norm_affine);
  EXPECT_EQ(plain.position_offset, 2);
  EXPECT_EQ(plain.activation, Activation::relu);
  EXPECT_EQ(plain.norm, NormKind::layer_norm);

  json variant = with(small_opt(), "do_layer_norm_before", false);
  variant["word_embed_proj_dim"] = 4;
  const ModelConfig small = parse(variant);
  EXPECT_EQ(small.norm_place, NormPlace::post);
  EXPECT_FALSE(small.final_norm);
  EXPECT_TRUE(small.has_projections());

  EXPECT_FALSE(parse(with(small_opt(), "_remove_final_layer_norm", true)).final_norm);
  EXPECT_FALSE(parse(with(small_opt(), "enable_bias", false)).qkv_bias);
  EXPECT_FALSE(parse(with(small_opt(), "layer_norm_elementwise_affine", false)).norm_affine);
  EXPECT_EQ(parse(with(small_opt(), "activation_function", "gelu")).activation, Activation::gelu);
}

TEST(ConfigTest, ReadsMistralWindows) {
  const json mistral = small_of("MistralForCausalLM");
  EXPECT_EQ(parse(with(mistral, "sliding_window", 16)).sliding_window_tokens, 16);
  EXPECT_EQ(parse(with(mistral, "sliding_window", nullptr)).sliding_window_tokens, 0);
  expect_refused(with(mistral, "sliding_window", 0), {"sliding_window is 0"});
}

std::vector<std::int64_t> windows(const json& fields) {
  const ModelConfig config = parse(fields);
  std::vector<std::int64_t> tokens;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    tokens.push_back(config.window_tokens(layer));
  return tokens;
}

using Windows = std::vector<std::int64_t>;

TEST(ConfigTest, ReadsMistralWindowsByLayer) {
  const json mistral = with(small_of("MistralForCausalLM"), "sliding_window", 16);
  EXPECT_EQ(windows(mistral), (Windows{16, 16}));
  const json alternating = with(mistral, "layer_types", {"full_attention", "sliding_attention"});
  EXPECT_EQ(windows(alternating), (Windows{0, 16}));
  EXPECT_EQ(parse(alternating).num_full_attention_layers(), 1);
  EXPECT_EQ(windows(with(mistral, "layer_types", {"full_attention", "full_attention"})),
            (Windows{0, 0}));
  EXPECT_EQ(windows(with(mistral, "layer_types", nullptr)), (Windows{16, 16}));
  expect_refused(with(mistral, "layer_types", {"full_attention"}),
                 {"layer_types has 1 entries", "num_hidden_layers 2"});
  expect_refused(with(mistral, "layer_types", {"full_attention", "chunked_attention"}),
                 {"layer_types has \"chunked_attention\""});
  expect_refused(with(alternating, "sliding_window", nullptr),
                 {"layer_types", "there is no window", "sliding_window"});
}

TEST(ConfigTest, ReadsBiasesAndHeadNormsOfQwen) {
  const ModelConfig qwen2 = parse(small_of("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias || qwen2.qk_norm);
  const json fields = small_of("Qwen3ForCausalLM");
  const ModelConfig qwen3 = parse(fields);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.out_bias);
  EXPECT_EQ(qwen3.head_dim, 128);  // the family's, whatever hidden_size is
  const ModelConfig biased = parse(with(with(fields, "attention_bias", true), "head_dim", 6));
  EXPECT_TRUE(biased.qkv_bias && biased.out_bias);
  EXPECT_EQ(expected_shape(biased, {TensorRole::k_norm_weight, 0}), (std::vector<std::int64_t>{6}));
}

class QwenConfigTest : public ::testing::TestWithParam<const char*> {};

TEST_P(QwenConfigTest, ReadsWindowsByLayer) {
  const json off = with(small_of(GetParam()), "sliding_window", 16);
  EXPECT_EQ(windows(off), (Windows{0, 0}));
  const json on = with(off, "use_sliding_window", true);
  EXPECT_EQ(windows(on), (Windows{0, 0}));  // max_window_layers is 28, there are 2
  EXPECT_EQ(windows(with(on, "max_window_layers", 0)), (Windows{16, 16}));
  EXPECT_EQ(windows(with(on, "max_window_layers", 1)), (Windows{0, 16}));
  EXPECT_EQ(windows(with(on, "layer_types", {"sliding_attention", "full_attention"})),
            (Windows{16, 0}));
  EXPECT_EQ(windows(with(on, "layer_types", {"sliding_attention", "sliding_attention"})),
            (Windows{16, 16}));
  expect_refused(with(off, "layer_types", {"sliding_attention", "full_attention"}),
                 {"layer_types", "use_sliding_window"});
}

INSTANTIATE_TEST_SUITE_P(Families, QwenConfigTest,
                         ::testing::Values("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
                         [](const auto& of) { return std::string(of.param); });

TEST(ConfigTest, WritesWindowsByLayerAgain) {
  for (const char* architecture : {"MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json fields = with(small_of(architecture), "sliding_window", 16);
    fields["use_sliding_window"] = true;
    fields["layer_types"] = {"sliding_attention", "full_attention"};
    const std::string text = config_json(parse(fields));
    EXPECT_EQ(windows(json::parse(text)), (Windows{16, 0})) << architecture;
    EXPECT_EQ(config_json(parse_config(text, "again")), text);
  }
}

TEST(ConfigTest, TakesTheDefaultsOfTransformersForMissingSizes) {
  const auto positions = [](json fields) {
    return parse(without(std::move(fields), "max_position_embeddings")).max_positions;
  };
  EXPECT_EQ(positions(small_llama()), 2048);
  EXPECT_EQ(positions(small_of("MistralForCausalLM")), 131072);
  EXPECT_EQ(positions(small_of("Qwen2ForCausalLM")), 32768);
  EXPECT_EQ(positions(small_of("Qwen3ForCausalLM")), 32768);
  EXPECT_EQ(positions(small_opt()), 2048);

  json mistral = without(small_of("MistralForCausalLM"), "num_key_value_heads");
  mistral["num_attention_heads"] = 16;
  mistral["head_dim"] = 2;
  EXPECT_EQ(parse(mistral).num_kv_heads, 8);
  EXPECT_EQ(parse(with(mistral, "num_key_value_heads", nullptr)).num_kv_heads, 16);
  EXPECT_EQ(parse(without(small_llama(), "num_key_value_heads")).num_kv_heads, 4);
}

TEST(ConfigTest, GoesByModelTypeWhateverTheArchitectureIsCalled) {
  for (const char* architecture : {"LlamaModel", "LLaMAForCausalLM", "Anything"})
    EXPECT_EQ(parse(with(small_llama(), "architectures", {architecture})).family, "llama");
  EXPECT_EQ(parse(with(small_llama(), "model_type", "mistral")).family, "mistral");
  EXPECT_EQ(parse(with(small_llama(), "model_type", "ministral")).family, "mistral");
  EXPECT_EQ(parse(with(small_llama(), "model_type", "a relative")).family, "llama");
}

TEST(ConfigTest, NamesMissingFields) {
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                            "intermediate_size"}) {
    expect_refused(without(small_llama(), field), {"config.json", field, "is missing"});
  }
  expect_refused(without(small_opt(), "ffn_dim"), {"ffn_dim", "is missing"});
  expect_refused(json::object(), {"model_type", "is missing"});
}

TEST(ConfigTest, ListsSupportedArchitecturesForOthers) {
  expect_refused(small_of("GPT2LMHeadModel"),
                 {"\"GPT2LMHeadModel\"",
                  "LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, OPTForCausalLM, "
                  "Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM"});
}

TEST(ConfigTest, RefusesWhatIsNoConfig) {
  expect_error([] { parse_config("", "config.json"); }, {"config.json", "not valid JSON"});
  expect_error([] { parse_config("{\"a\": tru\n}", "config.json"); }, {"not valid JSON"});
  expect_error([] { parse_config("[1]", "config.json"); }, {"its content is [1]", "JSON object"});
  expect_refused(with(small_llama(), "architectures", "LlamaForCausalLM"),
                 {"architectures", "a list of texts"});
  expect_refused(with(small_llama(), "rope_scaling", 3), {"rope_scaling is 3", "JSON object"});
}

TEST(ConfigTest, RefusesQuantizationsThatAreNotKnown) {
  expect_refused(with(small_llama(), "quantization_config", {{"quant_method", "aqlm"}}),
                 {"quantization_config.quant_method is \"aqlm\"", "\"compressed-tensors\""});
  expect_refused(with(small_llama(), "quantization_config", 4), {"is 4", "a JSON object"});
  EXPECT_FALSE(parse(with(small_llama(), "quantization_config", nullptr)).quantization);
}

TEST(ConfigTest, RefusesOtherActivations) {
  EXPECT_EQ(parse(with(small_llama(), "hidden_act", "gelu")).activation, Activation::gelu);
  EXPECT_EQ(parse(with(small_llama(), "hidden_act", "gelu_pytorch_tanh")).activation,
            Activation::gelu_tanh);
  expect_refused(with(small_llama(), "hidden_act", "mish"), {"hidden_act is \"mish\"", "silu"});
  expect_refused(with(small_opt(), "activation_function", "mish"),
                 {"activation_function is \"mish\"", "relu"});
}

TEST(ConfigTest, RefusesSizesOfTheWrongKind) {
  expect_refused(with(small_llama(), "hidden_size", 0),
                 {"hidden_size is 0", "whole number from 1"});
  expect_refused(with(small_llama(), "hidden_size", -8), {"hidden_size is -8"});
  expect_refused(with(small_llama(), "hidden_size", 8.5), {"hidden_size is 8.5"});
  expect_refused(with(small_llama(), "hidden_size", "8"), {"hidden_size is \"8\""});
  expect_refused(with(small_llama(), "vocab_size", std::numeric_limits<std::uint64_t>::max()),
                 {"vocab_size"});
  expect_refused(with(small_llama(), "rms_norm_eps", 0), {"rms_norm_eps is 0"});
  expect_refused(with(small_llama(), "tie_word_embeddings", 1),
                 {"tie_word_embeddings is 1", "true or false"});
}

TEST(ConfigTest, RefusesSizesThatDoNotFitEachOther) {
  expect_refused(with(small_llama(), "num_attention_heads", 3),
                 {"hidden_size 8", "num_attention_heads 3"});
  expect_refused(with(small_llama(), "num_key_value_heads", 3),
                 {"4 attention heads", "3 key-value heads"});
  expect_refused(with(small_llama(), "head_dim", 5), {"head_dim 5 is odd"});
  expect_refused(with(small_opt(), "num_attention_heads", 3),
                 {"hidden_size 8", "num_attention_heads 3"});
}

TEST(ConfigTest, RefusesSizesWhoseProductsOverflow) {
  json fields = with(small_llama(), "hidden_size", 1 << 24);
  fields["intermediate_size"] = 1 << 24;
  fields["num_hidden_layers"] = 10000;
  fields["num_attention_heads"] = 1;
  fields["num_key_value_heads"] = 1;
  expect_refused(fields, {"parameters", "2^53"});
  expect_refused(with(small_llama(), "num_hidden_layers", 2000000000),
                 {"num_hidden_layers is 2000000000"});
  expect_refused(with(small_llama(), "intermediate_size", 2000000000), {"FFN size is 2000000000"});
}

TEST(ConfigTest, CountsParametersByHand) {
  // Embedding and head 10*8 each; a layer: two norms 8, Q and O 8*8, K and V 4*8, three times 12*8;
  // last norm 8.
  EXPECT_EQ(num_parameters(parse(small_llama())), 2 * 80 + 2 * (16 + 128 + 64 + 288) + 8);
  // Embedding 10*8, positions 18*8; a layer: 4*(64+8), norms 4*8, 32*8+32 and 8*32+8; last norm 16.
  EXPECT_EQ(num_parameters(parse(small_opt())), 80 + 144 + 2 * (288 + 32 + 288 + 264) + 16);
}

TEST(ConfigTest, RefusesDeepNesting) {
  const std::size_t depth = 500000;
  std::string text = small_llama().dump();
  text.pop_back();
  text += ",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  expect_error([&] { parse_config(text, "config.json"); },
               {"config.json: nested deeper than 500 levels"});
}

}  // namespace
}  // namespace sluice
