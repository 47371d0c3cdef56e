#include "models/quantized/compressed_tensors_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/make_model.h"
#include "models/safetensors.h"
#include "tests/models/quantized/quantized_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

json read_json(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

class WriterTest : public ::testing::Test {
 protected:
  WriterTest() {
    config = find_shape("llama-3.2-1b");
    config.num_layers = 2;
    config.hidden_size = config.embed_size = 128;
    config.num_heads = 8;
    config.num_kv_heads = 2;
    config.head_dim = 16;
    config.ffn_size = 256;
    config.vocab_size = 299;  // half a word of zero points, more than two blocks
    config.max_positions = 64;
    make_plain("plain", false);
  }

  void make_plain(const char* name, bool tied) {
    config.tied_embeddings = tied;
    write_model(config, folder.file(name), {.seed = 5});
    plain = open_model(folder.file(name));
  }

  Model write(const QuantizeModelOptions& options, const char* name = "out") {
    roles = write_compressed_tensors(plain, folder.file(name), options);
    return open_model(folder.file(name));
  }

  /// What quantize_rows makes of the plain tensor.
  CodedRows expected(const WeightFormat& format, TensorId id, ScaleSearch search) const {
    const TensorView view = plain.weights->tensor(id);
    std::vector<float> values(static_cast<std::size_t>(view.shape[0] * view.shape[1]));
    read_floats(view, 0, values.size(), values.data());
    CodedRows coded;
    quantize_rows(format, view.shape[1], values, search, coded);
    return coded;
  }

  void expect_written(const Model& model, const WeightFormat& format, TensorId id,
                      ScaleSearch search = ScaleSearch::none) const {
    const auto tensor = model.weights->quantized(id);
    ASSERT_NE(tensor, nullptr);
    const bool is_tied = id.role == TensorRole::lm_head && plain.config.tied_embeddings;
    const auto coded =
        expected(format, is_tied ? TensorId{TensorRole::token_embedding} : id, search);
    testing::expect_coded(*tensor, {tensor->num_rows(), tensor->in(), format, coded});
  }

  void expect_same(const Model& model, TensorId id) const {
    const TensorView a = model.weights->tensor(id);
    const TensorView b = plain.weights->tensor(id);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end())) << a.name;
  }

  test::TemporaryFolder folder;
  ModelConfig config;
  Model plain;
  std::vector<QuantizedRole> roles;
};

constexpr TensorId some_q = {.role = TensorRole::q_weight, .layer = 1};
constexpr TensorId some_down = {.role = TensorRole::fc2_weight, .layer = 0};
constexpr TensorId head = {.role = TensorRole::lm_head};

class WriterFormatTest : public WriterTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(WriterFormatTest, IsReadAsQuantizeRowsMakesIt) {
  const WeightFormat format = parse_weight_format(GetParam());
  for (const int num_threads : {1, 3}) {
    const std::string name = "out" + std::to_string(num_threads);
    const Model model =
        write({.layers = format, .head = format, .num_threads = num_threads}, name.c_str());
    expect_written(model, format, some_q);
    expect_written(model, format, some_down);
    expect_written(model, format, head);
    expect_same(model, {TensorRole::token_embedding});
    expect_same(model, {TensorRole::attention_norm_weight, 1});
  }
}

INSTANTIATE_TEST_SUITE_P(All, WriterFormatTest,
                         ::testing::Values("int4-g32", "int4-g64z", "int4-g128", "int4-g0z",
                                           "int8-g32", "int8-g0", "int8-g128z", "fp8-row",
                                           "fp8-b128"));

TEST_F(WriterTest, LeavesTheHeadAndWhatIsKept) {
  const auto format = parse_weight_format("int4-g32");
  const Model model = write({.layers = format, .keep = {TensorRole::fc2_weight}});
  expect_written(model, format, some_q);
  expect_same(model, some_down);
  expect_same(model, head);
  const json quantization = read_json(folder.path() / "out/config.json")["quantization_config"];
  EXPECT_EQ(quantization["quant_method"], "compressed-tensors");
  EXPECT_EQ(quantization["format"], "pack-quantized");
  EXPECT_EQ(quantization["config_groups"]["group_0"]["weights"]["group_size"], 32);
  EXPECT_EQ(quantization["ignore"],
            (json{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head"}));
}

TEST_F(WriterTest, GivesTheHeadAFormatOfItsOwn) {
  const auto layers = parse_weight_format("int4-g32");
  const auto fp8 = parse_weight_format("fp8-row");
  const Model model = write({.layers = layers, .head = fp8});
  expect_written(model, layers, some_q);
  expect_written(model, fp8, head);
  EXPECT_EQ(read_json(folder.path() / "out/config.json")["quantization_config"]["format"],
            "mixed-precision");
  const Model head_alone = write({.layers = WeightFormat::plain(DType::bf16), .head = fp8}, "head");
  expect_same(head_alone, some_q);
  expect_written(head_alone, fp8, head);
}

TEST_F(WriterTest, UntiesAHeadThatItQuantises) {
  make_plain("plain-tied", true);
  const auto format = parse_weight_format("int8-g32");
  const Model model = write({.layers = format, .head = format});
  EXPECT_FALSE(model.config.tied_embeddings);
  expect_written(model, format, head);
  expect_same(model, {TensorRole::token_embedding});
  const Model tied = write({.layers = format}, "tied");
  EXPECT_TRUE(tied.config.tied_embeddings);
}

TEST_F(WriterTest, SearchesScales) {
  const auto format = parse_weight_format("int4-g32");
  write({.layers = format}, "plainly");
  const auto before = roles;
  const Model model = write({.layers = format, .search = ScaleSearch::mse});
  expect_written(model, format, some_q, ScaleSearch::mse);
  ASSERT_EQ(roles.size(), 7U);
  for (std::size_t i = 0; i < roles.size(); ++i) {
    EXPECT_LT(roles[i].squared_error, before[i].squared_error);
    EXPECT_NEAR(roles[i].relative_error(), 0.08, 0.01);
    EXPECT_EQ(roles[i].bytes * 8 * 2, roles[i].num_values * 9);  // 4.5 bits each
  }
  EXPECT_EQ(roles.front().num_values, 2U * 128 * 128);
}

TEST_F(WriterTest, WritesShardsAndTheirIndex) {
  const auto format = parse_weight_format("int4-g32z");
  const Model whole = write({.layers = format, .head = format}, "whole");
  const Model model =
      write({.layers = format, .head = format, .largest_shard_bytes = 100'000}, "shards");
  const auto names = names_in(folder.path() / "shards");
  EXPECT_GT(names.size(), 5U);
  EXPECT_EQ(names.back(), "model.safetensors.index.json");
  EXPECT_EQ(
      names_in(folder.path() / "whole"),
      (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
  expect_written(model, format, some_q);
  expect_written(model, format, head);
  expect_same(model, {TensorRole::final_norm_weight});
}

TEST_F(WriterTest, AlignsEveryTensorToItsElements) {  // as PyTorch wants it
  write({.layers = parse_weight_format("int4-g32z"), .head = parse_weight_format("fp8-b128")});
  const auto file =
      Safetensors::parse(*ModelFiles::open(folder.file("out")).map("model.safetensors"));
  for (const auto& [name, tensor] : file.tensors()) {
    const std::uint64_t bytes = tensor.dtype == "I64"   ? 8
                                : tensor.dtype == "I32" ? 4
                                : tensor.dtype == "F32" ? 4
                                : tensor.dtype == "F16" ? 2
                                                        : 1;
    EXPECT_EQ(tensor.begin % bytes, 0U) << name;
  }
}

TEST_F(WriterTest, CopiesTheOtherFiles) {
  folder.write("plain/tokenizer.json", "{}");
  write({.layers = parse_weight_format("int8-g0")});
  EXPECT_EQ(names_in(folder.path() / "out"),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                      "tokenizer.json"}));
}

TEST_F(WriterTest, TellsHowFarItIs) {
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  write({.layers = parse_weight_format("int4-g32"),
         .progress = [&](std::uint64_t done, std::uint64_t total) {
           EXPECT_GE(done, last);
           last = done;
           all = total;
         }});
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 100'000U);
}

TEST_F(WriterTest, LeavesNothingBehindWhenItIsStopped) {
  for (const int num_threads : {1, 2}) {
    int calls = 0;
    EXPECT_THROW(write({.layers = parse_weight_format("int4-g32"),
                        .num_threads = num_threads,
                        .progress =
                            [&](std::uint64_t, std::uint64_t) {
                              if (++calls == 4) throw std::runtime_error("stopped");
                            }}),
                 std::runtime_error);
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"plain"});
  }
}

TEST_F(WriterTest, LeavesNothingBehindOnAFullDisk) {
  expect_error(
      [&] {
        const test::SmallDisk disk(16384);
        write({.layers = parse_weight_format("int4-g32"), .num_threads = 2});
      },
      {"model.safetensors", "cannot be written", "File too large"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"plain"});
}

TEST_F(WriterTest, RefusesWhatItCannotDo) {
  const auto format = parse_weight_format("int4-g32");
  expect_error([&] { write({.layers = format}, "plain"); }, {"'", "plain' exists"});
  expect_error([&] { write({.layers = WeightFormat::plain(DType::bf16)}); },
               {"no weight would be quantised"});
  write({.layers = format});
  const Model quantised = open_model(folder.file("out"));
  expect_error(
      [&] { write_compressed_tensors(quantised, folder.file("again"), {.layers = format}); },
      {"out' is quantised already", "compressed-tensors"});
}

TEST_F(WriterTest, NamesWeightsThatGroupsDoNotDivide) {
  config.ffn_size = 288;
  write_model(config, folder.file("odd"), {});
  const Model odd = open_model(folder.file("odd"));
  const auto format = parse_weight_format("int4-g64");
  expect_error([&] { write_compressed_tensors(odd, folder.file("out"), {.layers = format}); },
               {"model.layers.0.mlp.down_proj.weight has 288 inputs", "groups of 64"});
  EXPECT_NO_THROW(write_compressed_tensors(odd, folder.file("out"),
                                           {.layers = format, .keep = {TensorRole::fc2_weight}}));
  EXPECT_NO_THROW(write_compressed_tensors(odd, folder.file("blocks"),
                                           {.layers = parse_weight_format("fp8-b128")}));
}

TEST_F(WriterTest, NamesValuesThatAreNoNumbers) {
  testing::ModelFolder files;
  json fields = testing::wide_llama();
  auto tensors = testing::tensors_of(fields);
  testing::named(tensors, "model.layers.0.mlp.up_proj.weight")
      .data.replace(4 * 300, 4, "\0\0\xc0\x7f", 4);
  files.write(fields, tensors);
  const Model model = files.open();
  expect_error(
      [&] {
        write_compressed_tensors(model, folder.file("out"),
                                 {.layers = parse_weight_format("int8-g0"), .num_threads = 2});
      },
      {"model.safetensors", "up_proj.weight", "row 2, input 44 is nan"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"plain"});
}

}  // namespace
}  // namespace sluice
