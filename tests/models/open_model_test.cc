#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryFolder;
using testing::expect_error;
using testing::small_llama;
using testing::tensors_of;
using testing::TestTensor;

class OpenModelTest : public ::testing::Test {
 protected:
  void write_config(const json& config) const { folder_.write("config.json", config.dump()); }
  void write_model(const json& config, const std::vector<TestTensor>& tensors) const {
    write_config(config);
    folder_.write("model.safetensors", testing::safetensors(tensors));
  }
  /// Two shards and their index; every second tensor is in the second.
  void write_shards(const std::vector<TestTensor>& tensors) const {
    std::vector<TestTensor> shards[2];
    json index;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      shards[i % 2].push_back(tensors[i]);
      index["weight_map"][tensors[i].name] = shard_name(i % 2);
    }
    for (std::size_t i = 0; i < 2; ++i)
      folder_.write(shard_name(i), testing::safetensors(shards[i]));
    folder_.write("model.safetensors.index.json", index.dump());
  }
  static std::string shard_name(std::size_t i) {
    return "model-0000" + std::to_string(i + 1) + "-of-00002.safetensors";
  }
  Model open() const { return open_model(folder_.path().string()); }
  void expect_refused(std::initializer_list<std::string_view> parts) const {
    expect_error([this] { open(); }, parts);
  }

  TemporaryFolder folder_;
};

float first_value(const Model& model, TensorId id, std::size_t index) {
  float value = 0;
  read_floats(model.weights->tensor(id), index, 1, &value);
  return value;
}

TEST_F(OpenModelTest, ReadsASingleFile) {
  write_model(small_llama(), tensors_of(small_llama()));
  folder_.write("generation_config.json", R"({"temperature": 0.5})");
  const Model model = open();
  EXPECT_EQ(model.config.num_layers, 2);
  EXPECT_EQ(model.generation.temperature, 0.5F);
  EXPECT_EQ(first_value(model, {TensorRole::fc1_weight, 1}, 95), 95.0F);
  EXPECT_EQ(model.weights->tensor({TensorRole::q_weight, 1}).name,
            "model.layers.1.self_attn.q_proj.weight");
}

TEST_F(OpenModelTest, ReadsShards) {
  write_config(small_llama());
  write_shards(tensors_of(small_llama()));
  const Model model = open();
  EXPECT_EQ(first_value(model, {TensorRole::token_embedding}, 79), 79.0F);
  EXPECT_EQ(first_value(model, {TensorRole::attention_norm_weight, 0}, 7), 7.0F);
  EXPECT_NE(model.weights->tensor({TensorRole::token_embedding}).file,
            model.weights->tensor({TensorRole::attention_norm_weight, 0}).file);
}

TEST_F(OpenModelTest, ToleratesAMissingOrExtraPrefixAndUnneededTensors) {
  for (const char* change : {"strip", "add"}) {
    auto tensors = tensors_of(small_llama());
    for (TestTensor& tensor : tensors) {
      if (std::string_view(change) == "add") {
        tensor.name = "model." + tensor.name;
      } else if (tensor.name.starts_with("model.")) {
        tensor.name = tensor.name.substr(6);
      }
    }
    tensors.push_back({"attn.mask", "I64", {1}, std::string(8, '\0')});
    write_model(small_llama(), tensors);
    EXPECT_NO_THROW(open()) << change;
  }
}

TEST_F(OpenModelTest, ReadsAConfigWithBiases) {
  json config = small_llama();
  config["attention_bias"] = config["mlp_bias"] = true;
  write_model(config, tensors_of(config));
  EXPECT_EQ(open().weights->tensor({TensorRole::gate_bias, 1}).name,
            "model.layers.1.mlp.gate_proj.bias");
}

TEST_F(OpenModelTest, NeedsNoHeadWhenItIsTied) {
  json config = small_llama();
  auto tensors = tensors_of(config);
  ASSERT_EQ(tensors.back().name, "lm_head.weight");
  tensors.pop_back();
  write_model(config, tensors);
  expect_refused({"\"lm_head.weight\"", "is missing", "tie_word_embeddings false"});
  config["tie_word_embeddings"] = true;
  write_model(config, tensors);
  const Model model = open();
  expect_error([&] { model.weights->tensor({TensorRole::lm_head}); }, {"no lm_head"});
}

TestTensor& tensor_named(std::vector<TestTensor>& tensors, std::string_view name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const TestTensor& tensor) { return tensor.name == name; });
}

json tied_llama() {
  json config = small_llama();
  config["tie_word_embeddings"] = true;
  return config;
}

TEST_F(OpenModelTest, TiesAHeadThatEqualsTheEmbedding) {
  write_model(tied_llama(), tensors_of(small_llama()));  // both count from 0
  EXPECT_TRUE(open().config.tied_embeddings);
}

TEST_F(OpenModelTest, TakesAHeadThatDiffersFromTheEmbedding) {
  auto tensors = tensors_of(small_llama());
  std::string& head = tensor_named(tensors, "lm_head.weight").data;
  head = head.substr(32) + head.substr(0, 32);  // rows moved by one
  write_model(tied_llama(), tensors);
  ::testing::internal::CaptureStderr();
  const Model model = open();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("lm_head.weight"), std::string::npos);
  EXPECT_FALSE(model.config.tied_embeddings);
  EXPECT_EQ(first_value(model, {TensorRole::lm_head}, 0), 8.0F);
  EXPECT_EQ(first_value(model, {TensorRole::token_embedding}, 0), 0.0F);
}

TEST_F(OpenModelTest, TakesTheHeadOfAnOptThatSaysNothingOfTying) {
  json config = {{"model_type", "opt"},
                 {"hidden_size", 8},
                 {"word_embed_proj_dim", 4},
                 {"num_hidden_layers", 1},
                 {"ffn_dim", 12},
                 {"num_attention_heads", 2},
                 {"vocab_size", 10},
                 {"max_position_embeddings", 16}};
  json untied = config;
  untied["tie_word_embeddings"] = false;
  auto tensors = tensors_of(untied);
  write_model(config, tensors);
  EXPECT_TRUE(open().config.tied_embeddings);
  std::string& head = tensor_named(tensors, "lm_head.weight").data;
  head = head.substr(16) + head.substr(0, 16);
  write_model(config, tensors);
  EXPECT_FALSE(open().config.tied_embeddings);
}

TEST_F(OpenModelTest, ComparesHeadAndEmbeddingByValue) {
  auto tensors = tensors_of(small_llama());
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"}) {
    TestTensor& tensor = tensor_named(tensors, name);
    for (std::size_t i = 0; i < 80; ++i) tensor.data.replace(4 * i, 4, "\0\0\x80\x3f", 4);  // 1.0
  }
  TestTensor& head = tensor_named(tensors, "lm_head.weight");
  head.dtype = "BF16";
  head.data.clear();
  for (std::size_t i = 0; i < 80; ++i) head.data += "\x80\x3f";
  write_model(tied_llama(), tensors);
  EXPECT_TRUE(open().config.tied_embeddings);
  head.data[158] = '\x40';
  head.data[159] = '\x40';
  write_model(tied_llama(), tensors);
  EXPECT_FALSE(open().config.tied_embeddings);
}

TEST_F(OpenModelTest, TakesATiedHeadForAMissingEmbedding) {
  auto tensors = tensors_of(small_llama());
  tensors.erase(tensors.begin());
  write_model(tied_llama(), tensors);
  EXPECT_EQ(open().weights->tensor({TensorRole::token_embedding}).name, "lm_head.weight");
}

TEST_F(OpenModelTest, ReadsWhatShardsHaveWhateverTheIndexNames) {
  write_config(small_llama());
  const auto tensors = tensors_of(small_llama());
  write_shards(tensors);
  json index =
      json::parse(*ModelFiles::open(folder_.path().string()).read("model.safetensors.index.json"));
  index["weight_map"]["nobody.needs.this"] = shard_name(0);
  index["weight_map"].erase(tensors[3].name);
  folder_.write("model.safetensors.index.json", index.dump());
  EXPECT_EQ(first_value(open(), {TensorRole::k_weight, 0}, 5), 5.0F);
}

TEST_F(OpenModelTest, TakesASingleFileBeforeShardsAndSaysSo) {
  auto tensors = tensors_of(small_llama());
  write_model(small_llama(), tensors);
  write_shards(tensors);
  ::testing::internal::CaptureStderr();
  const Model model = open();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("index.json"), std::string::npos);
  EXPECT_EQ(model.weights->tensor({TensorRole::lm_head}).file, folder_.file("model.safetensors"));
}

TEST_F(OpenModelTest, CallsAGitLfsPointerOne) {
  const char* pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n";
  write_model(small_llama(), tensors_of(small_llama()));
  for (const char* file : {"model.safetensors", "generation_config.json", "config.json"}) {
    folder_.write(file, pointer);
    expect_refused({file, "Git LFS pointer", "git lfs pull"});
  }
}

TEST_F(OpenModelTest, ReadsTheConfigAlone) {
  write_config(small_llama());
  EXPECT_EQ(read_model_config(folder_.path().string()).hidden_size, 8);
  expect_error([] { read_model_config("opt-125m"); }, {"'opt-125m' is a shape"});
}

TEST_F(OpenModelTest, NamesMissingTensors) {
  auto tensors = tensors_of(small_llama());
  tensors.erase(tensors.begin() + 2);
  write_model(small_llama(), tensors);
  expect_refused({"model.safetensors", "\"model.layers.0.self_attn.q_proj.weight\"", "2 layers"});
}

TEST_F(OpenModelTest, NamesWrongShapesAndTheFieldsBehindThem) {
  auto tensors = tensors_of(small_llama());
  TestTensor& k = tensors.at(3);
  ASSERT_EQ(k.name, "model.layers.0.self_attn.k_proj.weight");
  k.shape = {8, 4};
  write_model(small_llama(), tensors);
  expect_refused({"model.safetensors", k.name, "[8, 4]", "[4, 8]",
                  "[num_key_value_heads * head_dim, hidden_size]"});
}

TEST_F(OpenModelTest, RefusesOtherTypesInTheModel) {
  auto tensors = tensors_of(small_llama());
  tensors[0].dtype = "I32";
  write_model(small_llama(), tensors);
  expect_refused({"\"model.embed_tokens.weight\"", "\"I32\"", "BF16, F16 or F32"});
}

TEST_F(OpenModelTest, RefusesTruncatedFiles) {
  write_config(small_llama());
  const std::string whole = testing::safetensors(tensors_of(small_llama()));
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() - 1}) {
    folder_.write("model.safetensors", whole.substr(0, size));
    expect_refused({"model.safetensors"});
  }
}

TEST_F(OpenModelTest, NamesMissingShardsAndWhoNamesThem) {
  write_config(small_llama());
  write_shards(tensors_of(small_llama()));
  fs::remove(folder_.path() / shard_name(1));
  expect_refused({shard_name(1), "is missing", "model.safetensors.index.json names it"});
}

TEST_F(OpenModelTest, RefusesAnIndexThatDoesNotFitItsShards) {
  write_config(small_llama());
  write_shards(tensors_of(small_llama()));
  folder_.write(shard_name(1), testing::safetensors({}));
  expect_refused({shard_name(1), "is missing", "model.safetensors.index.json"});
}

TEST_F(OpenModelTest, RefusesBrokenIndexes) {
  write_config(small_llama());
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    folder_.write("model.safetensors.index.json", text);
    expect_refused(parts);
  };
  refused("{", {"model.safetensors.index.json", "not valid JSON"});
  refused("[]", {"no object weight_map"});
  refused(R"({"weight_map": 1})", {"no object weight_map"});
  refused(R"({"weight_map": {"a": 1}})", {"weight_map gives 1 for tensor \"a\""});
  refused(R"({"weight_map": {"a": "../x.safetensors"}})", {"../x.safetensors", "same folder"});
  refused(R"({"weight_map": {"a": "x", "a": "y"}})", {"\"a\"", "twice"});
  refused(R"({"weight_map": {}})", {"is missing"});
}

TEST_F(OpenModelTest, SaysWhichFilesAreMissing) {
  expect_refused({"holds no config.json"});
  write_config(small_llama());
  expect_refused({"neither model.safetensors nor model.safetensors.index.json"});
  folder_.write("pytorch_model.bin", "");
  expect_refused({"pytorch_model.bin is not supported", "convert"});
}

TEST_F(OpenModelTest, NamesFilesInTheirErrors) {
  folder_.write("config.json", "{}");
  expect_refused({folder_.file("config.json")});
  write_config(small_llama());
  folder_.write("generation_config.json", "x");
  expect_refused({folder_.file("generation_config.json")});
}

TEST_F(OpenModelTest, RefusesWhatIsNoFolder) {
  folder_.write("file", "x");
  expect_error([&] { open_model(folder_.file("file")); }, {"is no folder", "config.json"});
  expect_error([&] { open_model(folder_.file("none")); },
               {"no model folder", "No such file", "tiny"});
  expect_error([] { open_model(""); }, {"no model folder"});
  expect_error([] { open_model("opt-125m"); }, {"'opt-125m' is a shape", "make-model"});
}

TEST_F(OpenModelTest, RefusesFilesThatAreNotRegular) {
  write_config(small_llama());
  fs::create_directory(folder_.path() / "model.safetensors");
  expect_refused({"model.safetensors", "not a regular file"});
  fs::remove(folder_.path() / "model.safetensors");
  ASSERT_EQ(::mkfifo(folder_.file("model.safetensors").c_str(), 0600), 0);
  expect_refused({"model.safetensors", "not a regular file"});
}

TEST_F(OpenModelTest, SaysWhyAFileCannotBeOpened) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  write_model(small_llama(), tensors_of(small_llama()));
  fs::permissions(folder_.path() / "model.safetensors", fs::perms::none);
  expect_refused({"model.safetensors", "Permission denied"});
}

TEST_F(OpenModelTest, SaysThatADanglingLinkIsAMissingFile) {
  write_config(small_llama());
  fs::create_symlink("nowhere", folder_.path() / "model.safetensors");
  expect_refused({"model.safetensors"});
}

TEST(EmbeddedModelTest, OpensByName) {
  const Model model = open_model("tiny");
  EXPECT_EQ(model.name, "tiny");
  EXPECT_GT(num_parameters(model.config), 0);
  for (TensorId id : expected_tensors(model.config)) {
    const TensorView view = model.weights->tensor(id);
    EXPECT_EQ(view.file, "tiny:model.safetensors");
    EXPECT_FALSE(view.data.empty());
  }
}

TEST(EmbeddedModelTest, IsTheFolderInTheSourceTree) {
  const ModelFiles embedded = ModelFiles::open("tiny");
  const std::string folder = SLUICE_TEST_DATA_DIR "/../models/tiny/model";
  const ModelFiles on_disk = ModelFiles::open(folder);
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(embedded.read(name) == on_disk.read(name)) << name << " differs: build again";
    EXPECT_EQ(embedded.path(name), "tiny:" + name);
    ++count;
  }
  EXPECT_EQ(count, 5U);
  EXPECT_FALSE(embedded.contains("pytorch_model.bin"));
  EXPECT_FALSE(embedded.read("pytorch_model.bin").has_value());
}

TEST(EmbeddedModelTest, DoesNotHideAFolderOfThatName) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "tiny");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const ModelFiles files = ModelFiles::open("./tiny");
  EXPECT_FALSE(files.contains("config.json"));
  fs::current_path(before);
}

}  // namespace
}  // namespace sluice
