#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/config_json.h"
#include "models/quantized/quantized_tensor.h"
#include "tests/models/quantized/quantized_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::CodedWeight;
using testing::compressed_tensors_config;
using testing::compressed_tensors_group;
using testing::compressed_tensors_parts;
using testing::expect_coded;
using testing::expect_error;
using testing::named;
using testing::random_coded;
using testing::tensors_of;
using testing::TestTensor;
using testing::wide_llama;
using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

constexpr TensorId first_q = {.role = TensorRole::q_weight, .layer = 0};
constexpr TensorId last_down = {.role = TensorRole::fc2_weight, .layer = 1};
const std::string q_module = "model.layers.0.self_attn.q_proj";
const std::string down_module = "model.layers.1.mlp.down_proj";

WeightFormat with_scales(const char* name, Scales scales) {
  WeightFormat format = parse_weight_format(name);
  format.scales = scales;
  return format;
}

/// Puts random codes in place of a plain tensor.
CodedWeight replace(std::vector<TestTensor>& tensors, const std::string& module,
                    const WeightFormat& format) {
  const auto shape = take_out(tensors, module + ".weight");
  auto weight = random_coded(module, format, shape[0], shape[1]);
  for (TestTensor& part : compressed_tensors_parts(module, weight))
    tensors.push_back(std::move(part));
  return weight;
}

/// A model whose layers are quantised, all in this format.
class CompressedTensorsModel {
 public:
  explicit CompressedTensorsModel(const WeightFormat& format) {
    config["quantization_config"] = compressed_tensors_config(format);
    for (const std::string& module : testing::linear_modules(tensors)) {
      auto weight = replace(tensors, module, format);
      if (module == q_module) q = weight;
      if (module == down_module) down = std::move(weight);
    }
  }

  json& quantization() { return config["quantization_config"]; }
  json& weights() { return quantization()["config_groups"]["group_0"]["weights"]; }
  Model open() const {
    folder.write(config, tensors);
    return folder.open();
  }
  void expect_refused(std::initializer_list<std::string_view> parts) const {
    expect_error([this] { open(); }, parts);
  }

  json config = wide_llama();
  std::vector<TestTensor> tensors = tensors_of(wide_llama());
  CodedWeight q;
  CodedWeight down;
  testing::ModelFolder folder;
};

class CompressedTensorsTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(CompressedTensorsTest, GivesTheCodesAsTheyAre) {
  const CompressedTensorsModel files(GetParam());
  const Model model = files.open();
  EXPECT_EQ(model.weights->format(first_q), GetParam());
  expect_coded(*model.weights->quantized(first_q), files.q);
  expect_coded(*model.weights->quantized(last_down), files.down);
  EXPECT_EQ(model.weights->quantized(first_q)->name(), q_module + ".weight");
}

std::string name_of(const ::testing::TestParamInfo<WeightFormat>& info) {
  std::string name = to_string(info.param) + "_" + std::string(to_string(info.param.scales));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    All, CompressedTensorsTest,
    ::testing::Values(with_scales("int4-g32", Scales::f16), with_scales("int4-g64", Scales::bf16),
                      with_scales("int4-g128", Scales::f32), with_scales("int4-g0", Scales::bf16),
                      with_scales("int4-g32z", Scales::bf16),
                      with_scales("int4-g128z", Scales::f16), with_scales("int4-g0z", Scales::f32),
                      with_scales("int8-g32", Scales::f16), with_scales("int8-g64z", Scales::bf16),
                      with_scales("int8-g0", Scales::f32), with_scales("int8-g0z", Scales::f16),
                      with_scales("fp8-row", Scales::bf16), with_scales("fp8-row", Scales::f32),
                      with_scales("fp8-b128", Scales::f32), with_scales("fp8-b128", Scales::bf16)),
    name_of);

TEST(CompressedTensorsMixtureTest, LeavesOutWhatIsIgnored) {
  const auto format = parse_weight_format("int4-g32");
  CompressedTensorsModel files(format);
  const std::string up = "model.layers.1.mlp.up_proj";
  std::erase_if(files.tensors, [&](const TestTensor& t) { return t.name.starts_with(up); });
  files.tensors.push_back({up + ".weight", "F32", {256, 128}, testing::f32_sequence(256 * 128)});
  files.quantization()["ignore"] = {"lm_head", R"(re:.*layers\.1\.mlp\.up.*)"};
  const Model model = files.open();
  const TensorId plain = {.role = TensorRole::fc1_weight, .layer = 1};
  EXPECT_EQ(model.weights->quantized(plain), nullptr);
  EXPECT_EQ(model.weights->format(plain), WeightFormat::plain(DType::f32));
  EXPECT_EQ(model.weights->tensor(plain).shape, (std::vector<std::int64_t>{256, 128}));
  EXPECT_EQ(model.weights->format({TensorRole::lm_head}), WeightFormat::plain(DType::f32));
  EXPECT_EQ(model.weights->format({TensorRole::fc1_weight, 0}), format);
}

TEST(CompressedTensorsMixtureTest, GivesEachGroupItsOwnFormat) {
  const auto int4 = parse_weight_format("int4-g32");
  const auto int8 = parse_weight_format("int8-g64z");
  const auto fp8 = with_scales("fp8-row", Scales::bf16);
  CompressedTensorsModel files(int4);
  std::erase_if(files.tensors,
                [&](const TestTensor& t) { return t.name.starts_with(down_module); });
  files.tensors.push_back({down_module + ".weight", "F32", {128, 256}, ""});
  const auto down = replace(files.tensors, down_module, int8);
  const auto head = replace(files.tensors, "lm_head", fp8);
  json groups = {{"a", compressed_tensors_group(int4)},
                 {"b", compressed_tensors_group(int8)},
                 {"c", compressed_tensors_group(fp8)}};
  groups["b"]["targets"] = {down_module};
  groups["c"]["targets"] = {"re:lm_head"};
  groups["c"]["format"] = "float-quantized";
  files.quantization()["config_groups"] = groups;
  files.quantization()["ignore"] = nullptr;
  const Model model = files.open();
  EXPECT_EQ(model.weights->format(first_q), int4);
  expect_coded(*model.weights->quantized(last_down), down);
  expect_coded(*model.weights->quantized({TensorRole::lm_head}), head);  // 10 rows: half a word
}

TEST(CompressedTensorsMixtureTest, TakesAQuantisedHeadThatTheConfigTies) {
  for (const char* name : {"int4-g32", "fp8-row"}) {
    const auto format = parse_weight_format(name);
    CompressedTensorsModel files(format);
    files.config["tie_word_embeddings"] = true;
    const auto head = replace(files.tensors, "lm_head", format);
    files.quantization()["ignore"] = json::array();
    const Model model = files.open();
    EXPECT_FALSE(model.config.tied_embeddings);
    expect_coded(*model.weights->quantized({TensorRole::lm_head}), head);
  }
}

TEST(CompressedTensorsMixtureTest, ReadsAnEmbedding) {
  const auto format = parse_weight_format("int8-g0");
  CompressedTensorsModel files(format);
  const auto embedding = replace(files.tensors, "model.embed_tokens", format);
  files.quantization()["config_groups"]["group_0"]["targets"] = {"Linear", "Embedding"};
  const Model model = files.open();
  expect_coded(*model.weights->quantized({TensorRole::token_embedding}), embedding);
  expect_error([&] { model.weights->tensor({TensorRole::token_embedding}); },
               {"\"model.embed_tokens.weight\" is quantised (int8-g0)", "expected a plain one"});
}

TEST(CompressedTensorsFormTest, DropsZeroPointsThatAreAllTheMiddle) {
  CompressedTensorsModel files(parse_weight_format("int4-g32z"));
  TestTensor& zero_points = named(files.tensors, q_module + ".weight_zero_point");
  zero_points.data.assign(zero_points.data.size(), '\x88');
  const Model model = files.open();
  EXPECT_FALSE(model.weights->format(first_q).has_zero_points);
  EXPECT_TRUE(model.weights->format(last_down).has_zero_points);
  files.q.format.has_zero_points = false;
  files.q.rows.zero_points.clear();
  expect_coded(*model.weights->quantized(first_q), files.q);
}

TEST(CompressedTensorsFormTest, ReadsZeroPointsOfOneByteEach) {  // as versions up to 0.9 wrote them
  CompressedTensorsModel files(parse_weight_format("int4-g32z"));
  TestTensor& zero_points = named(files.tensors, q_module + ".weight_zero_point");
  zero_points.dtype = "I8";
  zero_points.shape = {128, 4};
  zero_points.data.clear();
  for (const std::uint8_t zero : files.q.rows.zero_points)
    zero_points.data += static_cast<char>(zero - 8);
  expect_coded(*files.open().weights->quantized(first_q), files.q);
}

TEST(CompressedTensorsFormTest, ReadsCodesOfOneByteEach) {
  const auto format = parse_weight_format("int8-g0");
  CompressedTensorsModel files(format);
  for (const std::string& module : {q_module, down_module}) {
    const CodedWeight& weight = module == q_module ? files.q : files.down;
    std::erase_if(files.tensors,
                  [&](const TestTensor& t) { return t.name == module + ".weight_shape"; });
    TestTensor& codes = named(files.tensors, module + ".weight_packed");
    codes = {module + ".weight", "I8", {weight.out, weight.in}, ""};
    for (const std::uint8_t code : weight.rows.codes) codes.data += static_cast<char>(code - 128);
  }
  json group = compressed_tensors_group(format);
  group["format"] = "int-quantized";
  group["targets"] = {q_module, down_module};
  group["input_activations"] = {{"num_bits", 8}, {"dynamic", true}, {"strategy", "token"}};
  files.quantization()["config_groups"]["group_1"] = group;
  ::testing::internal::CaptureStderr();
  const Model model = files.open();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("made for activations"),
            std::string::npos);
  expect_coded(*model.weights->quantized(first_q), files.q);
  expect_coded(*model.weights->quantized(last_down), files.down);
}

TEST(CompressedTensorsFormTest, RepeatsTheScaleOfAWholeTensor) {
  CompressedTensorsModel files(with_scales("fp8-row", Scales::f32));
  files.weights()["strategy"] = "tensor";
  for (TestTensor& tensor : files.tensors) {
    if (!tensor.name.ends_with(".weight_scale")) continue;
    tensor.shape = {1};
    tensor.data.resize(4);
  }
  for (std::uint32_t& scale : files.q.rows.scales) scale = files.q.rows.scales.front();
  expect_coded(*files.open().weights->quantized(first_q), files.q);
}

TEST(CompressedTensorsFormTest, DequantisesByTheFormula) {
  CodedRows rows;
  WeightFormat format = parse_weight_format("int4-g32z");
  rows.resize(format, 1, 64);
  rows.codes.assign(64, 3);
  rows.scales = {0x3c00, 0xc000};  // 1 and -2
  rows.zero_points = {15, 0};
  std::vector<float> values(64);
  dequantize(format, 64, rows, values);
  EXPECT_EQ(values[31], -12.0F);
  EXPECT_EQ(values[32], -6.0F);
}

// --- Bad input

TEST(CompressedTensorsErrorsTest, NameWhatConfigJsonAsksFor) {
  const auto refused = [](const std::function<void(CompressedTensorsModel&)>& change,
                          std::initializer_list<std::string_view> parts) {
    CompressedTensorsModel files(parse_weight_format("int4-g32"));
    change(files);
    files.expect_refused(parts);
  };
  for (const int bits : {2, 3, 5}) {
    refused([&](auto& files) { files.weights()["num_bits"] = bits; },
            {"config.json: quantization_config.config_groups.group_0.weights.num_bits is " +
                 std::to_string(bits),
             "expected 4 or 8"});
  }
  refused([](auto& files) { files.quantization()["quant_method"] = "bitsandbytes"; },
          {"quantization_config.quant_method is \"bitsandbytes\"", "\"compressed-tensors\"",
           "bf16, f16 or f32"});
  refused([](auto& files) { files.quantization().erase("quant_method"); },
          {"quant_method is missing"});
  refused([](auto& files) { files.quantization()["format"] = "marlin-24"; },
          {"quantization_config.format is \"marlin-24\"", "\"pack-quantized\""});
  refused([](auto& files) { files.quantization().erase("format"); }, {"format is missing"});
  refused([](auto& files) { files.quantization().erase("config_groups"); },
          {"config_groups is missing"});
  refused(
      [](auto& files) {
        files.quantization()["config_groups"] = {{"W4A16", {"Linear"}}};
      },
      {"W4A16 is [\"Linear\"]", "a JSON object"});
  refused([](auto& files) { files.weights()["group_size"] = 48; },
          {"group_size is 48", "32, 64 or 128"});
  refused([](auto& files) { files.weights()["strategy"] = "tensor_group"; },
          {"strategy is \"tensor_group\"", "\"group\" or \"channel\""});
  refused([](auto& files) { files.weights()["type"] = "float"; },
          {"type is \"float\"", "\"int\" in the format \"pack-quantized\""});
  refused([](auto& files) { files.weights()["actorder"] = "group"; },
          {"actorder is \"group\"", "\"weight\""});
  refused([](auto& files) { files.quantization()["ignore"] = {"re:("}; },
          {"quantization_config.ignore", "no regular expression"});
  refused(
      [](auto& files) {
        files.quantization()["config_groups"]["group_0"]["input_activations"] = {
            {"num_bits", 8}, {"dynamic", false}};
      },
      {"group_0.input_activations.dynamic is false", "expected true", "fixed scales"});
  refused(
      [](auto& files) {
        files.quantization()["kv_cache_scheme"] = {{"num_bits", 8}, {"dynamic", false}};
      },
      {"kv_cache_scheme.dynamic is false"});
  refused(
      [](auto& files) {
        files.quantization()["sparsity_config"] = {{"format", "sparse-24"}};
      },
      {"sparsity_config.format is \"sparse-24\""});
  refused(
      [](auto& files) {
        files.quantization()["transform_config"] = {{"R1", 1}};
      },
      {"transform_config is", "rotated"});
}

TEST(CompressedTensorsErrorsTest, NameBlocksThatAreNot128By128) {
  CompressedTensorsModel files(with_scales("fp8-b128", Scales::f32));
  files.weights()["block_structure"] = {64, 128};
  files.expect_refused({"block_structure is [64,128]", "expected [128, 128]"});
  files.weights()["block_structure"] = {128, 128};
  files.weights()["num_bits"] = 4;
  files.expect_refused({"num_bits is 4", "expected 8"});
}

TEST(CompressedTensorsErrorsTest, NameMissingAndMisshapenParts) {
  const auto refused = [](const std::function<void(std::vector<TestTensor>&)>& change,
                          std::initializer_list<std::string_view> parts) {
    CompressedTensorsModel files(parse_weight_format("int4-g32z"));
    change(files.tensors);
    files.expect_refused(parts);
  };
  refused([](auto& tensors) { take_out(tensors, q_module + ".weight_scale"); },
          {"q_proj.weight_scale\" is missing", "compressed-tensors"});
  refused([](auto& tensors) { take_out(tensors, q_module + ".weight_zero_point"); },
          {"q_proj.weight_zero_point\" is missing"});
  refused([](auto& tensors) { take_out(tensors, q_module + ".weight_packed"); },
          {"q_proj.weight_packed\" is missing"});
  refused(
      [](auto& tensors) {
        named(tensors, q_module + ".weight_scale").shape = {4, 128};
      },
      {"q_proj.weight_scale\" has shape [4, 128], expected [128, 4]", "[128, 128]"});
  refused(
      [](auto& tensors) {
        named(tensors, q_module + ".weight_packed").shape = {16, 128};
      },
      {"q_proj.weight_packed\" has shape [16, 128], expected [128, 16]"});
  refused(
      [](auto& tensors) {
        named(tensors, q_module + ".weight_zero_point").shape = {4, 16};
      },
      {"q_proj.weight_zero_point\" has shape [4, 16], expected [16, 4]"});
  refused([](auto& tensors) { named(tensors, q_module + ".weight_packed").dtype = "F32"; },
          {"q_proj.weight_packed\" is of type \"F32\", expected I32"});
  refused(
      [](auto& tensors) {
        TestTensor& scales = named(tensors, q_module + ".weight_scale");
        scales.dtype = "I16";
      },
      {"q_proj.weight_scale\" is of type \"I16\", expected F16, BF16, F32"});
  refused(
      [](auto& tensors) {
        named(tensors, q_module + ".weight_shape").data =
            testing::bytes_of(std::vector<std::int64_t>{128, 127});
      },
      {"q_proj.weight_shape\" says [128, 127], expected [128, 128]"});
  refused(
      [](auto& tensors) {
        tensors.push_back(
            {q_module + ".weight", "F32", {128, 128}, testing::f32_sequence(128 * 128)});
      },
      {"q_proj.weight\" is there both plain and quantised"});
  refused(
      [](auto& tensors) {
        tensors.push_back({q_module + ".weight_g_idx", "I32", {1}, std::string(4, '\0')});
      },
      {"q_proj.weight_g_idx\" gives the inputs another order"});
}

TEST(CompressedTensorsErrorsTest, NameGroupsThatDoNotDivideTheInputs) {
  json config = wide_llama();
  config["intermediate_size"] = 288;
  auto tensors = tensors_of(config);
  const auto format = parse_weight_format("int4-g64");
  for (const std::string& module : testing::linear_modules(tensors))
    replace(tensors, module, format);
  config["quantization_config"] = compressed_tensors_config(format);
  const testing::ModelFolder folder;
  folder.write(config, tensors);
  expect_error([&] { folder.open(); },
               {"\"model.layers.0.mlp.down_proj.weight\" has 288 inputs", "groups of 64"});
}

TEST(CompressedTensorsErrorsTest, NameConfigsAndTensorsWithoutEachOther) {
  const CompressedTensorsModel files(parse_weight_format("int4-g32"));
  json plain = files.config;
  plain.erase("quantization_config");
  files.folder.write(plain, files.tensors);
  expect_error([&] { files.folder.open(); },
               {"q_proj.weight\" is quantised", "no quantization_config", "get both again"});
  files.folder.write(files.config, tensors_of(wide_llama()));
  expect_error([&] { files.folder.open(); }, {"q_proj.weight_packed\" is missing"});
  json ignored = files.config;
  ignored["quantization_config"]["ignore"] = {"re:.*"};
  files.folder.write(ignored, tensors_of(wide_llama()));
  expect_error([&] { files.folder.open(); },
               {"no weight is quantised", "remove quantization_config"});
  files.folder.write(ignored, files.tensors);
  expect_error([&] { files.folder.open(); },
               {"q_proj.weight_packed\" is packed, but quantization_config leaves"});
}

TEST(CompressedTensorsErrorsTest, NameTheFirstBadScale) {
  struct Bad {
    Scales scales;
    std::string bits;
    const char* text;
  };
  for (const Bad& bad : {Bad{Scales::f16, "\x00\x7c", "inf"}, Bad{Scales::bf16, "\xc0\xff", "nan"},
                         Bad{Scales::f32, std::string("\x00\x00\x80\xff", 4), "-inf"}}) {
    const std::string bits = bad.scales == Scales::f16 ? std::string("\x00\x7c", 2) : bad.bits;
    CompressedTensorsModel files(with_scales("int4-g32", bad.scales));
    TestTensor& scales = named(files.tensors, q_module + ".weight_scale");
    scales.data.replace((4 * 17 + 2) * bits.size(), bits.size(), bits);
    const Model model = files.open();
    const auto tensor = model.weights->quantized(first_q);
    CodedRows rows;
    EXPECT_NO_THROW(tensor->read(0, 17, rows));
    expect_error([&] { tensor->read(10, 20, rows); },
                 {"model.safetensors", q_module, "row 17, group 2 is ", bad.text, "finite"});
  }
}

TEST(CompressedTensorsErrorsTest, NameRowsThatAreNotThere) {
  const CompressedTensorsModel files(parse_weight_format("int4-g32"));
  const Model model = files.open();
  const auto tensor = model.weights->quantized(first_q);
  CodedRows rows;
  EXPECT_NO_THROW(tensor->read(128, 0, rows));
  expect_error([&] { tensor->read(120, 9, rows); }, {"rows 120 to 129", "it has 128"});
  expect_error([&] { tensor->read(-1, 2, rows); }, {"rows -1 to 1"});
}

// --- Weights that become one

class CommonFormatTest : public ::testing::Test {
 protected:
  static constexpr TensorId qkv[3] = {{.role = TensorRole::q_weight, .layer = 0},
                                      {.role = TensorRole::k_weight, .layer = 0},
                                      {.role = TensorRole::v_weight, .layer = 0}};
};

TEST_F(CommonFormatTest, IsThatOfAll) {
  const auto format = parse_weight_format("int4-g32");
  const CompressedTensorsModel files(format);
  EXPECT_EQ(common_format(*files.open().weights, qkv), format);
}

TEST_F(CommonFormatTest, HasZeroPointsWhereOneHas) {
  const auto format = parse_weight_format("int4-g32z");
  CompressedTensorsModel files(format);
  TestTensor& zero_points = named(files.tensors, q_module + ".weight_zero_point");
  zero_points.data.assign(zero_points.data.size(), '\x88');
  const Model model = files.open();
  EXPECT_EQ(common_format(*model.weights, qkv), format);
  CodedRows rows;
  model.weights->quantized(first_q)->read(0, 2, rows);
  EXPECT_TRUE(rows.zero_points.empty());
  rows.add_zero_points(Codes::int4);
  EXPECT_EQ(rows.zero_points, std::vector<std::uint8_t>(8, 8));
}

TEST_F(CommonFormatTest, NamesTheOneThatDiffers) {
  CompressedTensorsModel files(parse_weight_format("int4-g32"));
  const std::string v = "model.layers.0.self_attn.v_proj";
  std::erase_if(files.tensors, [&](const TestTensor& t) { return t.name.starts_with(v); });
  files.tensors.push_back({v + ".weight", "F32", {32, 128}, testing::f32_sequence(32 * 128)});
  files.quantization()["ignore"] = {"lm_head", v};
  expect_error([&] { common_format(*files.open().weights, qkv); },
               {"layer 0: q_weight is int4-g32 with scales of type f16, v_weight is f32"});
}

}  // namespace
}  // namespace sluice
