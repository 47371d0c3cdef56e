// gpt-oss: its config.json, and experts that lie in one tensor for all of a layer.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/config_json.h"
#include "models/make_model.h"
#include "models/model.h"
#include "models/quantized/compressed_tensors_writer.h"
#include "tests/models/quantized/quantized_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::CodedWeight;
using testing::expect_error;
using testing::ModelFolder;
using testing::named;
using testing::take_out;
using testing::TestTensor;
using Role = TensorRole;

/// config.json of openai/gpt-oss-20b, but for the list of its layers.
json published() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"model_type", "gpt_oss"},
          {"attention_bias", true},
          {"attention_dropout", 0.0},
          {"eos_token_id", 200002},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"max_position_embeddings", 131072},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 24},
          {"num_key_value_heads", 8},
          {"num_local_experts", 32},
          {"output_router_logits", false},
          {"pad_token_id", 199999},
          {"quantization_config",
           {{"modules_to_not_convert",
             {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
              "lm_head"}},
            {"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-05},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"router_aux_loss_coef", 0.9},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 201088}};
}

ModelConfig parse(const json& fields) { return parse_config(fields.dump(), "config.json"); }

json with(const json& change) {
  json fields = published();
  fields.update(change);
  return fields;
}

TEST(GptOssConfigTest, IsThePublishedOne) {
  const ModelConfig config = parse(published());
  EXPECT_EQ(num_parameters(config), 20'914'757'184);
  ModelConfig shape = find_shape("gpt-oss-20b");
  shape.bos_token_id.reset();  // not in the file
  shape.stored_dtype = config.stored_dtype;
  EXPECT_EQ(config_json(config), config_json(shape));
  EXPECT_EQ(config.router, RouterKind::softmax_of_chosen);
  EXPECT_EQ(config.activation, Activation::clamped_swiglu);
  EXPECT_TRUE(config.router_bias && config.ffn_bias && config.qkv_bias && config.out_bias);
  EXPECT_TRUE(config.attention_sinks);
  EXPECT_FALSE(config.rope_scaling->truncate);
}

/// As GptOssConfig has them.
TEST(GptOssConfigTest, HasTransformersDefaults) {
  json fields = published();
  for (const char* field :
       {"attention_bias", "experts_per_token", "head_dim", "hidden_act", "max_position_embeddings",
        "num_experts_per_tok", "num_key_value_heads", "rms_norm_eps", "rope_scaling", "rope_theta",
        "sliding_window", "swiglu_limit", "tie_word_embeddings"})
    fields.erase(field);
  EXPECT_EQ(config_json(parse(fields)), config_json(parse(published())));
  fields.erase("num_local_experts");
  EXPECT_EQ(parse(fields).num_experts, 128);
}

TEST(GptOssConfigTest, ReadsWhatDiffers) {
  json types = json::array();
  for (int i = 0; i < 24; ++i) types.push_back(i < 5 ? "full_attention" : "sliding_attention");
  const ModelConfig config = parse(with({{"layer_types", types},
                                         {"sliding_window", 9},
                                         {"swiglu_limit", 2.5},
                                         {"attention_bias", false}}));
  EXPECT_EQ(config.window_tokens(4), 0);
  EXPECT_EQ(config.window_tokens(5), 9);
  EXPECT_EQ(config.swiglu_limit, 2.5F);
  EXPECT_FALSE(config.qkv_bias || config.out_bias);
  EXPECT_TRUE(config.router_bias && config.ffn_bias);
  json fields = with({{"experts_per_token", 3}});
  fields.erase("num_experts_per_tok");
  EXPECT_EQ(parse(fields).experts_per_token, 3);
}

TEST(GptOssConfigTest, RefusesWhatItCannotCompute) {
  expect_error(
      [] {
        parse(with({{"hidden_act", "gelu"}}));
      },
      {"config.json: hidden_act is \"gelu\"", "\"silu\""});
  for (const double limit : {0.0, -7.0}) {
    expect_error(
        [&] {
          parse(with({{"swiglu_limit", limit}}));
        },
        {"config.json: swiglu_limit is ", "a number above 0"});
  }
  expect_error([] { parse(with({{"swiglu_alpha", 1.0}})); }, {"swiglu_alpha is 1", "1.702"});
  EXPECT_NO_THROW(parse(with({{"swiglu_alpha", 1.702}})));
  expect_error(
      [] {
        parse(with({{"experts_per_token", 2}}));
      },
      {"num_experts_per_tok is 4 and experts_per_token 2"});
  expect_error(
      [] {
        parse(with({{"num_experts_per_tok", 33}, {"experts_per_token", 33}}));
      },
      {"num_experts_per_tok is 33", "1 to 32"});
  expect_error(
      [] {
        parse(with({{"sliding_window", nullptr},
                    {"layer_types", std::vector<std::string>(24, "sliding_attention")}}));
      },
      {"layer_types", "sliding_window"});
}

/// What plan reads without the checkpoint.
TEST(GptOssConfigTest, SaysWhichWeightsHaveCodes) {
  const ModelFolder folder;
  folder.write(published(), {});
  const ModelConfig config = read_model_config(folder.folder().path().string());
  const LayerFormats& formats = config.layer_formats.at(0);
  const WeightFormat mxfp4 = parse_weight_format("mxfp4");
  for (const LayerWeight weight : all_layer_weights)
    EXPECT_EQ(formats[weight] == mxfp4, is_of_ffn(weight)) << static_cast<int>(weight);
  EXPECT_TRUE(config.head_format.is_plain());
}

/// One layer of 2 experts: hidden 8, 2 heads of 4, FFN 3, vocabulary 10.
json small() {
  json fields = with({{"hidden_size", 8},
                      {"num_hidden_layers", 1},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},
                      {"head_dim", 4},
                      {"intermediate_size", 3},
                      {"num_local_experts", 2},
                      {"num_experts_per_tok", 1},
                      {"vocab_size", 10}});
  for (const char* field : {"experts_per_token", "quantization_config"}) fields.erase(field);
  return fields;
}

const std::string experts = "model.layers.0.mlp.experts.";

bool is_of_expert(const TestTensor& tensor) {
  return tensor.name.find(".experts.") != std::string::npos;
}

/// All its tensors as they are published, element i of each being i.
std::vector<TestTensor> small_tensors() {
  std::vector<TestTensor> tensors;
  for (TestTensor& tensor : testing::tensors_of(small())) {
    if (!is_of_expert(tensor)) tensors.push_back(std::move(tensor));
  }
  tensors.push_back({experts + "gate_up_proj", "F32", {2, 8, 6}, testing::f32_sequence(96)});
  tensors.push_back({experts + "gate_up_proj_bias", "F32", {2, 6}, testing::f32_sequence(12)});
  tensors.push_back({experts + "down_proj", "F32", {2, 3, 8}, testing::f32_sequence(48)});
  tensors.push_back({experts + "down_proj_bias", "F32", {2, 8}, testing::f32_sequence(16)});
  return tensors;
}

std::vector<float> values_of(const WeightSource& weights, Role role, std::int64_t expert) {
  const TensorView view = weights.tensor({role, 0, expert});
  std::vector<float> values(view.data.size() / sizeof(float));
  read_floats(view, 0, values.size(), values.data());
  return values;
}

/// Expert 1's begin in the middle of each: 48 + 6 * input + 2 * output, one more for up; 24 + 8 *
/// input + output.
TEST(GptOssWeightsTest, ExpertsArePartsOfStacks) {
  const ModelFolder folder;
  folder.write(small(), small_tensors());
  const Model model = folder.open();
  std::vector<float> gate, up, down;
  for (int output = 0; output < 3; ++output) {
    for (int input = 0; input < 8; ++input) {
      gate.push_back(static_cast<float>(48 + 6 * input + 2 * output));
      up.push_back(gate.back() + 1);
    }
  }
  for (int output = 0; output < 8; ++output) {
    for (int input = 0; input < 3; ++input)
      down.push_back(static_cast<float>(24 + 8 * input + output));
  }
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(values_of(*model.weights, Role::gate_weight, 1), gate);
    EXPECT_EQ(values_of(*model.weights, Role::fc1_weight, 1), up);
    EXPECT_EQ(values_of(*model.weights, Role::fc2_weight, 1), down);
    EXPECT_EQ(values_of(*model.weights, Role::gate_bias, 1), (std::vector<float>{6, 8, 10}));
    EXPECT_EQ(values_of(*model.weights, Role::fc1_bias, 0), (std::vector<float>{1, 3, 5}));
    EXPECT_EQ(values_of(*model.weights, Role::fc2_bias, 1).front(), 8);
    for (const TensorId id : expected_tensors(model.config)) model.weights->release(id);
  }
  EXPECT_EQ(model.weights->tensor({Role::fc1_weight, 0, 1}).name,
            experts + "gate_up_proj[1, :, 1::2]");
}

/// As tools write them that quantise each expert by itself.
TEST(GptOssWeightsTest, ExpertsMayStandByThemselves) {
  const ModelFolder folder;
  std::vector<TestTensor> tensors = testing::tensors_of(small());
  folder.write(small(), tensors);
  EXPECT_EQ(values_of(*folder.open().weights, Role::fc1_weight, 1).at(5), 5);
  take_out(tensors, experts + "1.up_proj.bias");
  folder.write(small(), tensors);
  expect_error([&] { folder.open(); }, {"tensor \"" + experts + "1.up_proj.bias\" is missing"});
}

TEST(GptOssWeightsTest, NamesStacksThatAreWrong) {
  const ModelFolder folder;
  std::vector<TestTensor> tensors = small_tensors();
  take_out(tensors, experts + "down_proj");
  folder.write(small(), tensors);
  expect_error([&] { folder.open(); }, {"tensor \"" + experts + "down_proj\" is missing"});
  tensors = small_tensors();
  named(tensors, experts + "gate_up_proj").shape = {2, 6, 8};
  folder.write(small(), tensors);
  expect_error([&] { folder.open(); }, {"gate_up_proj\" has shape [2, 6, 8], expected [2, 8, 6]",
                                        "2 experts", "[intermediate_size, hidden_size]"});
  tensors = small_tensors();
  named(tensors, experts + "down_proj_bias") = {
      experts + "down_proj_bias", "F32", {1, 8}, testing::f32_sequence(8)};
  folder.write(small(), tensors);
  expect_error([&] { folder.open(); },
               {"down_proj_bias\" has shape [1, 8], expected [2, 8]", "[hidden_size]"});
}

TEST(GptOssWeightsTest, MakeModelWritesStacksOfTheSameValues) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ModelConfig config = parse(small());
    config.stored_dtype = dtype;
    const test::TemporaryFolder folder;
    write_model(config, folder.file("out"), {.dtype = dtype, .seed = 3});
    const Model model = open_model(folder.file("out"));
    EXPECT_EQ(model.weights->tensor({Role::gate_weight, 0, 1}).name,
              experts + "gate_up_proj[1, :, 0::2]");
    const auto random = random_weights(config, dtype, 3);
    for (const TensorId id : expected_tensors(config)) {
      const TensorView view = model.weights->tensor(id);
      const TensorView expected = random->tensor(id);
      ASSERT_EQ(view.shape, expected.shape) << view.name;
      EXPECT_TRUE(std::equal(view.data.begin(), view.data.end(), expected.data.begin(),
                             expected.data.end()))
          << view.name;
    }
  }
}

/// Quantised, each expert stands by itself; biases and the router stay as they are.
TEST(GptOssWeightsTest, QuantizeWritesExpertsThatAreReadAgain) {
  const ModelFolder folder;
  folder.write(small(), small_tensors());
  const test::TemporaryFolder out;
  write_compressed_tensors(folder.open(), out.file("int8"),
                           {.layers = parse_weight_format("int8-g0")});
  const Model model = open_model(out.file("int8"));
  EXPECT_EQ(values_of(*model.weights, Role::gate_bias, 1), (std::vector<float>{6, 8, 10}));
  EXPECT_EQ(model.weights->quantized({Role::router_weight, 0}), nullptr);
  const auto down = model.weights->quantized({Role::fc2_weight, 0, 1});
  ASSERT_NE(down, nullptr);
  CodedRows coded;
  down->read(0, 8, coded);
  std::vector<float> values(24);
  dequantize(down->format(), 3, coded, values);
  // Expert 1's are 24 + 8 * input + output, up to 47; a step of the scale is 47 / 127.
  for (int output = 0; output < 8; ++output) {
    for (int input = 0; input < 3; ++input)
      EXPECT_NEAR(values.at(static_cast<std::size_t>(3 * output + input)), 24 + 8 * input + output,
                  0.2);
  }
}

// --- In mxfp4: hidden 64, FFN 32

json small_mxfp4() {
  json fields = small();
  fields.update({{"hidden_size", 64},
                 {"intermediate_size", 32},
                 {"quantization_config", published()["quantization_config"]}});
  return fields;
}

struct Mxfp4Folder {
  CodedWeight gate_up = testing::random_coded("gate_up", parse_weight_format("mxfp4"), 128, 64);
  CodedWeight down = testing::random_coded("down", parse_weight_format("mxfp4"), 128, 32);
  std::vector<TestTensor> tensors;
  json config = small_mxfp4();
  ModelFolder folder;

  Mxfp4Folder() {
    json plain = config;
    plain.erase("quantization_config");
    for (TestTensor& tensor : testing::tensors_of(plain)) {
      if (!is_of_expert(tensor)) tensors.push_back(std::move(tensor));
    }
    tensors.push_back({experts + "gate_up_proj_bias", "F32", {2, 64}, testing::f32_sequence(128)});
    tensors.push_back({experts + "down_proj_bias", "F32", {2, 64}, testing::f32_sequence(128)});
    add("gate_up_proj", gate_up, {2, 64, 2, 16});
    add("down_proj", down, {2, 64, 1, 16});
  }

  void add(const std::string& name, const CodedWeight& weight, std::vector<std::int64_t> shape) {
    auto parts = testing::mxfp4_parts(experts + name, weight);
    parts[0].shape = shape;
    shape.pop_back();
    parts[1].shape = shape;
    tensors.insert(tensors.end(), parts.begin(), parts.end());
  }
  Model open() const {
    folder.write(config, tensors);
    return folder.open();
  }
};

/// Every step-th row from the first on, `out` of them.
CodedWeight rows_of(const CodedWeight& all, std::int64_t first, std::int64_t step,
                    std::int64_t out) {
  CodedWeight part{.out = out, .in = all.in, .format = all.format, .rows = {}};
  for (std::int64_t row = 0; row < out; ++row) {
    const std::int64_t from = first + step * row;
    for (std::int64_t i = 0; i < all.in; ++i) part.rows.codes.push_back(all.code(from, i));
    for (std::int64_t group = 0; group < all.num_groups(); ++group)
      part.rows.scales.push_back(all.scale(from, group));
  }
  return part;
}

TEST(GptOssMxfp4Test, TakesTheCodesAsTheyAre) {
  const Mxfp4Folder files;
  const Model model = files.open();
  const auto quantized = [&](Role role, std::int64_t expert) {
    return model.weights->quantized({role, 0, expert});
  };
  for (const std::int64_t expert : {0, 1}) {
    testing::expect_coded(*quantized(Role::gate_weight, expert),
                          rows_of(files.gate_up, expert * 64, 2, 32));
    testing::expect_coded(*quantized(Role::fc1_weight, expert),
                          rows_of(files.gate_up, expert * 64 + 1, 2, 32));
    testing::expect_coded(*quantized(Role::fc2_weight, expert),
                          rows_of(files.down, expert * 64, 1, 64));
  }
  EXPECT_EQ(quantized(Role::fc1_weight, 1)->name(), experts + "gate_up_proj[1, 1::2]");
  EXPECT_EQ(model.weights->quantized({Role::q_weight, 0}), nullptr);
  EXPECT_EQ(values_of(*model.weights, Role::fc1_bias, 1).front(), 65);
}

using Change = void (*)(Mxfp4Folder& files);

TEST(GptOssMxfp4Test, NamesWhatIsWrong) {
  const auto expect_refused = [](Change change, std::initializer_list<std::string_view> texts) {
    Mxfp4Folder files;
    change(files);
    expect_error([&] { files.open(); }, texts);
  };
  expect_refused(
      [](Mxfp4Folder& files) {
        named(files.tensors, experts + "down_proj_blocks").shape = {1, 128, 1, 16};
        named(files.tensors, experts + "down_proj_scales").shape = {1, 128, 1};
      },
      {"down_proj_blocks\" has shape [1, 128, 1, 16]", "expected [2, 64, 1, 16]: 2 experts"});
  expect_refused(
      [](Mxfp4Folder& files) { take_out(files.tensors, experts + "gate_up_proj_scales"); },
      {"gate_up_proj_scales\" is missing"});
  expect_refused(
      [](Mxfp4Folder& files) {
        files.tensors.push_back(
            {experts + "down_proj", "F32", {2, 32, 64}, testing::f32_sequence(2 * 32 * 64)});
      },
      {"down_proj\" is there both plain and quantised (mxfp4)"});
  expect_refused([](Mxfp4Folder& files) { files.config.erase("quantization_config"); },
                 {"gate_up_proj\" is quantised", "no quantization_config; get both again"});
}

}  // namespace
}  // namespace sluice
