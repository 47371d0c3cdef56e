// GPTQ, AWQ, DeepSeek's fp8 and gpt-oss's MXFP4; compressed-tensors has a file of its own.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "models/config_json.h"
#include "models/quantized/mxfp4.h"
#include "tests/models/quantized/quantized_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::CodedWeight;
using testing::expect_coded;
using testing::expect_error;
using testing::named;
using testing::random_coded;
using testing::TestTensor;
using Scales = WeightFormat::Scales;

constexpr TensorId first_q = {.role = TensorRole::q_weight, .layer = 0};
constexpr TensorId last_down = {.role = TensorRole::fc2_weight, .layer = 1};
const std::string q_module = "model.layers.0.self_attn.q_proj";
const std::string down_module = "model.layers.1.mlp.down_proj";

/// A way of writing quantised weights, and its quantization_config.
struct Method {
  std::string name;
  WeightFormat format;
  json config;
  std::function<std::vector<TestTensor>(const std::string&, const CodedWeight&)> parts;
};

WeightFormat with_scales(const char* name, Scales scales) {
  WeightFormat format = parse_weight_format(name);
  format.scales = scales;
  return format;
}

Method gptq(const char* name, bool is_v2, Scales scales = Scales::f16) {
  const WeightFormat format = with_scales(name, scales);
  return {.name = std::string("gptq_") + name + (is_v2 ? "_v2" : ""),
          .format = format,
          .config = testing::gptq_config(format, is_v2),
          .parts = [is_v2](const std::string& module, const CodedWeight& weight) {
            return testing::gptq_parts(module, weight, is_v2);
          }};
}

Method awq(const char* name) {
  const WeightFormat format = parse_weight_format(name);
  return {.name = std::string("awq_") + name,
          .format = format,
          .config = testing::awq_config(format),
          .parts = testing::awq_parts};
}

Method fp8(Scales scales) {
  return {.name = std::string("fp8_") + std::string(to_string(scales)),
          .format = with_scales("fp8-b128", scales),
          .config = testing::fp8_config(),
          .parts = testing::fp8_parts};
}

Method mxfp4() {
  return {.name = "mxfp4",
          .format = parse_weight_format("mxfp4"),
          .config = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}},
          .parts = testing::mxfp4_parts};
}

/// A model whose layers are quantised in a method's way.
class QuantizedModel {
 public:
  explicit QuantizedModel(const Method& method) : format(method.format) {
    config["quantization_config"] = method.config;
    for (const std::string& module : testing::linear_modules(tensors)) {
      const auto shape = take_out(tensors, module + ".weight");
      auto weight = random_coded(module, format, shape[0], shape[1]);
      for (TestTensor& part : method.parts(module, weight)) tensors.push_back(std::move(part));
      if (module == q_module) q = weight;
      if (module == down_module) down = std::move(weight);
    }
  }

  json& quantization() { return config["quantization_config"]; }
  Model open() const {
    folder.write(config, tensors);
    return folder.open();
  }
  void expect_refused(std::initializer_list<std::string_view> parts) const {
    expect_error([this] { open(); }, parts);
  }

  WeightFormat format;
  json config = testing::wide_llama();
  std::vector<TestTensor> tensors = testing::tensors_of(testing::wide_llama());
  CodedWeight q;
  CodedWeight down;
  testing::ModelFolder folder;
};

class MethodTest : public ::testing::TestWithParam<Method> {};

TEST_P(MethodTest, GivesTheCodesAsTheyAre) {
  const QuantizedModel files(GetParam());
  const Model model = files.open();
  expect_coded(*model.weights->quantized(first_q), files.q);
  expect_coded(*model.weights->quantized(last_down), files.down);
  EXPECT_EQ(model.weights->quantized({TensorRole::lm_head}), nullptr);
  EXPECT_EQ(model.weights->format({TensorRole::lm_head}), WeightFormat::plain(DType::f32));
}

TEST_P(MethodTest, IsForeseenByTheConfigAlone) {
  const QuantizedModel files(GetParam());
  const ModelConfig config = parse_config(files.config.dump(), "config.json");
  WeightFormat format = expected_format(config, first_q);
  EXPECT_EQ(format.codes, files.format.codes);
  EXPECT_EQ(format.group, files.format.group);
  EXPECT_EQ(format.group_rows, files.format.group_rows);
  EXPECT_EQ(expected_format(config, {TensorRole::lm_head}), WeightFormat::plain(DType::f32));
  EXPECT_EQ(expected_format(config, {TensorRole::token_embedding}),
            WeightFormat::plain(DType::f32));
  EXPECT_EQ(expected_format(config, {TensorRole::ffn_norm_weight, 1}),
            WeightFormat::plain(DType::f32));
}

TEST_P(MethodTest, TakesAMixture) {  // what is there plain is plain
  QuantizedModel files(GetParam());
  std::erase_if(files.tensors,
                [](const TestTensor& tensor) { return tensor.name.starts_with(down_module); });
  files.tensors.push_back(
      {down_module + ".weight", "F32", {128, 256}, testing::f32_sequence(128 * 256)});
  const Model model = files.open();
  EXPECT_EQ(model.weights->format(last_down), WeightFormat::plain(DType::f32));
  expect_coded(*model.weights->quantized(first_q), files.q);
}

TEST_P(MethodTest, RefusesATensorBothPlainAndQuantised) {
  QuantizedModel files(GetParam());
  if (GetParam().config["quant_method"] == "fp8") {  // its codes have the plain name
    named(files.tensors, q_module + ".weight") = {
        q_module + ".weight", "F32", {128, 128}, testing::f32_sequence(128 * 128)};
    files.expect_refused({"q_proj.weight_scale_inv\" is there, but the weight beside it is plain"});
    return;
  }
  files.tensors.push_back(
      {q_module + ".weight", "F32", {128, 128}, testing::f32_sequence(128 * 128)});
  files.expect_refused({"q_proj.weight\" is there both plain and quantised", "remove one"});
}

TEST_P(MethodTest, RefusesConfigsAndTensorsWithoutEachOther) {
  const QuantizedModel files(GetParam());
  json plain = files.config;
  plain.erase("quantization_config");
  files.folder.write(plain, files.tensors);
  expect_error([&] { files.folder.open(); }, {"q_proj.weight\""});
  files.folder.write(files.config, testing::tensors_of(testing::wide_llama()));
  expect_error([&] { files.folder.open(); }, {"no weight is quantised"});
}

TEST_P(MethodTest, NamesABadScale) {
  QuantizedModel files(GetParam());
  for (TestTensor& tensor : files.tensors) {
    if (!tensor.name.starts_with(q_module) || tensor.name.find("scale") == std::string::npos)
      continue;
    const std::size_t size = size_bytes(files.format.scales);
    tensor.data.replace(tensor.data.size() - size, size, size, '\xff');
  }
  const Model model = files.open();
  const auto tensor = model.weights->quantized(first_q);
  CodedRows rows;
  const std::string row = files.format.group_rows != 1 ? "row 100, " : "row 127, ";
  expect_error([&] { tensor->read(100, 28, rows); }, {q_module, row, "nan"});
}

std::string name_of(const ::testing::TestParamInfo<Method>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, MethodTest,
                         ::testing::Values(gptq("int4-g32z", false), gptq("int4-g128z", true),
                                           gptq("int4-g64", false), gptq("int4-g0z", false),
                                           gptq("int8-g32z", false, Scales::bf16),
                                           gptq("int8-g128", true), awq("int4-g32z"),
                                           awq("int4-g128"), awq("int4-g0z"), fp8(Scales::f32),
                                           fp8(Scales::bf16), mxfp4()),
                         name_of);

// --- The embedded model in every way

/// The codes of one of its weights as they are read back.
CodedRows read_back(const Method& method, TensorId id) {
  const test::TemporaryFolder folder;
  testing::write_quantized(open_model("tiny"), folder, method.format, method.config, method.parts);
  const Model model = open_model(folder.path().string());
  EXPECT_EQ(model.weights->format(id), method.format) << method.name;
  CodedRows rows;
  const auto tensor = model.weights->quantized(id);
  tensor->read(0, tensor->num_rows(), rows);
  return rows;
}

Method compressed_tensors(const char* name) {
  const WeightFormat format = parse_weight_format(name);
  return {.name = name,
          .format = format,
          .config = testing::compressed_tensors_config(format),
          .parts = testing::compressed_tensors_parts};
}

TEST(TinyModelTest, IsTheSameFromEveryMethod) {
  for (const auto& methods :
       {std::vector{compressed_tensors("int4-g32z"), gptq("int4-g32z", false),
                    gptq("int4-g32z", true), awq("int4-g32z")},
        std::vector{compressed_tensors("int4-g32"), gptq("int4-g32", false), awq("int4-g32")},
        std::vector{compressed_tensors("int8-g32"), gptq("int8-g32", false)},
        std::vector{compressed_tensors("fp8-b128"), fp8(Scales::f32)}}) {
    const TensorId id = {.role = TensorRole::fc2_weight, .layer = 5};
    const CodedRows expected = read_back(methods.front(), id);
    for (const Method& method : methods) {
      const CodedRows rows = read_back(method, id);
      EXPECT_EQ(rows.codes, expected.codes) << method.name;
      EXPECT_EQ(rows.scales, expected.scales) << method.name;
      EXPECT_EQ(rows.zero_points, expected.zero_points) << method.name;
    }
  }
}

// --- Bad input of each

struct Refusal {
  std::function<void(QuantizedModel&)> change;
  std::vector<std::string_view> parts;
};

void expect_refusals(const Method& method, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    QuantizedModel files(method);
    refusal.change(files);
    for (const std::string_view part : refusal.parts) files.expect_refused({part});
  }
}

TEST(GptqErrorsTest, NameWhatIsNotSupported) {
  const auto set = [](const char* key, const json& value) {
    return [=](QuantizedModel& files) { files.quantization()[key] = value; };
  };
  expect_refusals(
      gptq("int4-g32z", false),
      {{set("bits", 3), {"quantization_config.bits is 3", "expected 4 or 8"}},
       {set("bits", 2), {"quantization_config.bits is 2"}},
       {[](QuantizedModel& files) { files.quantization().erase("bits"); }, {"bits is missing"}},
       {set("desc_act", true), {"desc_act is true, expected false"}},
       {set("group_size", 1024), {"group_size is 1024, expected 32, 64, 128 or -1"}},
       {set("checkpoint_format", "marlin"), {"checkpoint_format is \"marlin\"", "\"gptq_v2\""}},
       {set("dynamic", {{"+:.*down.*", {{"bits", 8}}}}), {"dynamic.+:.*down.* is"}},
       {[](QuantizedModel& files) { take_out(files.tensors, q_module + ".scales"); },
        {"q_proj.scales\" is missing"}},
       {[](QuantizedModel& files) { take_out(files.tensors, q_module + ".qzeros"); },
        {"q_proj.qzeros\" is missing"}},
       {[](QuantizedModel& files) {
          named(files.tensors, q_module + ".qweight").shape = {128, 16};
        },
        {"q_proj.qweight\" has shape [128, 16], expected [16, 128]"}},
       {set("bits", 8), {"q_proj.qweight\" has shape [16, 128], expected [32, 128]"}},
       {set("group_size", 64), {"q_proj.g_idx\": input 32 is in group 1, expected 0"}},
       {[](QuantizedModel& files) {
          TestTensor& order = named(files.tensors, q_module + ".g_idx");
          std::swap(order.data[0], order.data[4 * 127]);
        },
        {"input 0 is in group 3, expected 0", "desc_act false"}},
       {[](QuantizedModel& files) {
          take_out(files.tensors, q_module + ".g_idx");
          named(files.tensors, q_module + ".scales").shape = {128, 4};
        },
        {"q_proj.scales\" has shape [128, 4], expected [4, 128]"}}});
}

TEST(GptqTest, TakesRulesThatLeaveModulesOut) {
  QuantizedModel files(gptq("int4-g32z", false));
  files.quantization()["dynamic"] = {{"-:.*down.*", json::object()}};
  EXPECT_NO_THROW(files.open());
}

TEST(AwqErrorsTest, NameWhatIsNotSupported) {
  const auto set = [](const char* key, const json& value) {
    return [=](QuantizedModel& files) { files.quantization()[key] = value; };
  };
  expect_refusals(
      awq("int4-g32z"),
      {{set("bits", 8), {"bits is 8, expected 4"}},
       {set("w_bit", 3), {"w_bit is 3, expected 4"}},
       {set("version", "gemv"), {"version is \"gemv\", expected \"gemm\""}},
       {set("zero_point", false), {"zero_point is false, expected true"}},
       {set("group_size", 16), {"group_size is 16, expected 32, 64, 128 or -1"}},
       {set("modules_to_not_convert", {"("}), {"modules_to_not_convert: \"(\" is no regular"}},
       {[](QuantizedModel& files) {
          named(files.tensors, q_module + ".qweight").shape = {16, 128};
        },
        {"q_proj.qweight\" has shape [16, 128], expected [128, 16]"}},
       {[](QuantizedModel& files) { take_out(files.tensors, q_module + ".qzeros"); },
        {"q_proj.qzeros\" is missing"}}});
}

TEST(AwqTest, ReadsTheOldNamesOfItsFields) {
  QuantizedModel files(awq("int4-g32z"));
  files.quantization() = {
      {"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", 32}, {"version", "GEMM"}};
  expect_coded(*files.open().weights->quantized(first_q), files.q);
}

TEST(Fp8ErrorsTest, NameWhatIsNotSupported) {
  const auto set = [](const char* key, const json& value) {
    return [=](QuantizedModel& files) { files.quantization()[key] = value; };
  };
  expect_refusals(
      fp8(Scales::f32),
      {{set("activation_scheme", "static"), {"activation_scheme is \"static\", expected"}},
       {set("weight_block_size", {64, 64}), {"weight_block_size is [64,64], expected [128, 128]"}},
       {set("weight_block_size", nullptr), {"weight_block_size is null, expected [128, 128]"}},
       {set("fmt", "e5m2"), {"fmt is \"e5m2\", expected \"e4m3\""}},
       {[](QuantizedModel& files) { take_out(files.tensors, q_module + ".weight_scale_inv"); },
        {"q_proj.weight_scale_inv\" is missing"}},
       {[](QuantizedModel& files) {
          named(files.tensors, down_module + ".weight_scale_inv").shape = {2, 1};
        },
        {"down_proj.weight_scale_inv\" has shape [2, 1], expected [1, 2]"}},
       {[](QuantizedModel& files) { named(files.tensors, q_module + ".weight").dtype = "F8_E5M2"; },
        {"q_proj.weight\" is of type \"F8_E5M2\", expected F8_E4M3"}}});
}

TEST(Fp8Test, NeedsNoBlockSize) {
  QuantizedModel files(fp8(Scales::f32));
  files.quantization().erase("weight_block_size");
  expect_coded(*files.open().weights->quantized(first_q), files.q);
}

TEST(Fp8Test, NamesWeightsThatNoConfigExplains) {
  QuantizedModel files(fp8(Scales::f32));
  files.config.erase("quantization_config");
  files.expect_refused({"q_proj.weight\" is of type \"F8_E4M3\", expected BF16, F16 or F32"});
}

// --- MXFP4's own interface, for experts

TEST(Mxfp4Test, CountsAllExpertsRows) {
  const auto weight = random_coded("experts", parse_weight_format("mxfp4"), 12, 64);
  auto parts = testing::mxfp4_parts("model.layers.0.mlp.experts.down_proj", weight);
  parts[0].shape = {3, 4, 2, 16};
  parts[1].shape = {3, 4, 2};
  const testing::ModelFolder folder;
  folder.write({}, parts);
  const auto checkpoint = Checkpoint::open(ModelFiles::open(folder.folder().path().string()));
  QuantizationConfig config;
  config.method = "mxfp4";
  expect_coded(*open_mxfp4(config, checkpoint, "model.layers.0.mlp.experts.down_proj"), weight);
  EXPECT_EQ(open_mxfp4(config, checkpoint, "model.layers.0.mlp.experts.up_proj"), nullptr);
}

TEST(Mxfp4ErrorsTest, NameWhatIsMisshapen) {
  expect_refusals(mxfp4(),
                  {{[](QuantizedModel& files) {
                      named(files.tensors, q_module + "_blocks").shape = {128, 8, 8};
                    },
                    {"q_proj_blocks\" is [128, 8, 8] of \"U8\", expected [..., rows, groups, 16]"}},
                   {[](QuantizedModel& files) {
                      named(files.tensors, q_module + "_scales").shape = {4, 128};
                    },
                    {"q_proj_scales\" has shape [4, 128], expected [128, 4]"}},
                   {[](QuantizedModel& files) { take_out(files.tensors, q_module + "_scales"); },
                    {"q_proj_scales\" is missing"}},
                   {[](QuantizedModel& files) {
                      named(files.tensors, q_module + "_blocks").shape = {64, 8, 16};
                      named(files.tensors, q_module + "_scales").shape = {64, 8};
                    },
                    {"is a weight of [64, 256], expected [128, 128]"}}});
}

}  // namespace
}  // namespace sluice
