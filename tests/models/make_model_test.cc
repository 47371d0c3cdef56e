#include "models/make_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/config_json.h"
#include "models/model.h"
#include "models/random_values.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::expect_error;

ModelConfig small_config() { return parse_config(testing::small_llama().dump(), "config.json"); }

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.data.size() == b.data.size() &&
         std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

void expect_same_weights(const Model& model, const WeightSource& expected) {
  for (TensorId id : expected_tensors(model.config)) {
    const TensorView view = model.weights->tensor(id);
    EXPECT_TRUE(same_bytes(view, expected.tensor(id))) << view.name;
  }
}

/// What fits into one shard, and what needs several.
class MakeModelTest : public ::testing::TestWithParam<std::tuple<DType, std::uint64_t>> {};

TEST_P(MakeModelTest, WritesTheValuesOfRandomWeights) {
  const auto [dtype, largest_shard_bytes] = GetParam();
  ModelConfig config = small_config();
  config.stored_dtype = dtype;
  const TemporaryFolder folder;
  write_model(small_config(), folder.file("out"),
              {.dtype = dtype, .seed = 7, .largest_shard_bytes = largest_shard_bytes});
  const Model model = open_model(folder.file("out"));
  EXPECT_EQ(config_json(model.config), config_json(config));
  expect_same_weights(model, *random_weights(model.config, dtype, 7));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out"});
}

INSTANTIATE_TEST_SUITE_P(All, MakeModelTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(std::uint64_t{1}, std::uint64_t{600},
                                                              std::uint64_t{5'000'000'000})));

TEST(MakeModelFilesTest, AreNamedAsHuggingFaceDoes) {
  const TemporaryFolder folder;
  write_model(small_config(), folder.file("one"), {});
  EXPECT_EQ(
      names_in(folder.path() / "one"),
      (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
  write_model(small_config(), folder.file("two"), {.largest_shard_bytes = 1500});
  EXPECT_EQ(names_in(folder.path() / "two"),
            (std::vector<std::string>{
                "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
}

TEST(MakeModelFilesTest, HoldEveryFamily) {
  const TemporaryFolder folder;
  for (std::string name :
       {"opt-350m", "qwen2-0.5b", "qwen3-0.6b", "mistral-7b-v0.1", "llama-3.1-8b"}) {
    ModelConfig config = find_shape(name);
    config.num_layers = 1;  // the shape, but small
    config.hidden_size = config.num_heads * 2;
    config.head_dim = 2;
    config.embed_size = name == "opt-350m" ? 6 : config.hidden_size;
    config.ffn_size = 10;
    config.vocab_size = 11;
    config.max_positions = 64;
    write_model(config, folder.file(name), {.dtype = DType::f32, .seed = 1});
    const Model model = open_model(folder.file(name));
    EXPECT_EQ(model.config.family, config.family);
    EXPECT_EQ(model.config.embed_size, config.embed_size);
    expect_same_weights(model, *random_weights(config, DType::f32, 1));
  }
}

TEST(MakeModelErrorsTest, LeaveAnExistingFolderAlone) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  expect_error([&] { make_model("opt-125m", folder.path().string(), DType::bf16, 1); }, {"exists"});
  expect_error([&] { make_model("opt-125m", folder.file("file"), DType::bf16, 1); }, {"exists"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"file"});
}

TEST(MakeModelErrorsTest, DoNotStandAgainstAnEmptyFolder) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "out");
  write_model(small_config(), folder.file("out") + "/", {});
  EXPECT_NO_THROW(open_model(folder.file("out")));
}

TEST(MakeModelErrorsTest, NameAnUnusableFolder) {
  const TemporaryFolder folder;
  expect_error([&] { write_model(small_config(), folder.file("no/such"), {}); },
               {"no", "cannot be used"});
  expect_error([&] { write_model(small_config(), "", {}); }, {"no output folder"});
}

TEST(MakeModelErrorsTest, SayWhenTheDiskIsTooSmall) {
  const TemporaryFolder folder;
  ModelConfig config = find_shape("llama-2-70b");
  config.num_layers = 9000;
  expect_error([&] { write_model(config, folder.file("out"), {.dtype = DType::f32}); },
               {"would take 30", "GB free"});
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(MakeModelErrorsTest, SayWhichShapesHaveNoCheckpoint) {
  const TemporaryFolder folder;
  expect_error([&] { make_model("bloom-176b", folder.file("out"), DType::bf16, 1); },
               {"\"bloom\"", "shape only", "LlamaForCausalLM"});
  expect_error([&] { make_model("opt-30", folder.file("out"), DType::bf16, 1); },
               {"no shape", "opt-30b"});
}

TEST(MakeModelErrorsTest, LeaveNothingBehindWhenWritingFails) {
  const TemporaryFolder folder;
  expect_error(
      [&] {
        const test::SmallDisk disk(2048);
        write_model(small_config(), folder.file("out"), {.dtype = DType::f32});
      },
      {"model.safetensors", "cannot be written", "File too large"});
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(RandomWeightsTest, DependOnSeedNameAndIndexOnly) {
  std::vector<float> whole(1000);
  fill_random(TensorRole::q_weight, "a", 1, DType::f32, 0,
              std::as_writable_bytes(std::span(whole)));
  std::vector<float> part(100);
  fill_random(TensorRole::k_weight, "a", 1, DType::f32, 900,
              std::as_writable_bytes(std::span(part)));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 900));
  std::vector<float> other(1000);
  fill_random(TensorRole::q_weight, "b", 1, DType::f32, 0,
              std::as_writable_bytes(std::span(other)));
  EXPECT_NE(whole, other);
  fill_random(TensorRole::q_weight, "a", 2, DType::f32, 0,
              std::as_writable_bytes(std::span(other)));
  EXPECT_NE(whole, other);
}

TEST(RandomWeightsTest, StayTheSameFromReleaseToRelease) {  // values from an independent program
  std::vector<float> values(3);
  fill_random(TensorRole::q_weight, "model.layers.0.self_attn.q_proj.weight", 42, DType::f32, 0,
              std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{-0x1.2914d4p-14F, 0x1.ae7304p-8F, -0x1.8259ecp-7F}));
}

/// Several threads make one of some MiB.
TEST(RandomWeightsTest, LargeTensorsHaveTheSameValuesInAllTheirPieces) {
  ModelConfig config = small_config();
  config.ffn_size = (std::int64_t{1} << 19) + 3;
  const auto weights = random_weights(config, DType::f32, 7);
  const TensorView tensor = weights->tensor({.role = TensorRole::fc2_weight, .layer = 0});
  std::vector<std::byte> expected(tensor.data.size());
  ASSERT_GT(expected.size(), std::size_t{9} << 20);
  fill_random(TensorRole::fc2_weight, tensor.name, 7, DType::f32, 0, expected);
  EXPECT_EQ(std::memcmp(tensor.data.data(), expected.data(), expected.size()), 0);
}

TEST(RandomWeightsTest, LookNormal) {
  std::vector<float> values(1 << 20);
  fill_random(TensorRole::q_weight, "a", 1, DType::f32, 0,
              std::as_writable_bytes(std::span(values)));
  double sum = 0;
  double squares = 0;
  double largest = 0;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 1e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 1e-4);
  EXPECT_LT(largest, 0.0693);
  EXPECT_GT(largest, 0.06);
}

TEST(RandomWeightsTest, AreTheSameInEveryTypeButForRounding) {
  constexpr std::size_t count = 100000;
  std::vector<float> exact(count);
  fill_random(TensorRole::q_weight, "a", 1, DType::f32, 0,
              std::as_writable_bytes(std::span(exact)));
  std::vector<std::uint16_t> half(count);
  fill_random(TensorRole::q_weight, "a", 1, DType::f16, 0, std::as_writable_bytes(std::span(half)));
  std::vector<BFloat16> brain(count);
  fill_random(TensorRole::q_weight, "a", 1, DType::bf16, 0,
              std::as_writable_bytes(std::span(brain)));
  for (std::size_t i = 0; i < count; ++i) {
    // Half a unit in the last place: 2^-11 relative, 2^-25 absolute for subnormal halves.
    EXPECT_NEAR(half_to_float(half[i]), exact[i],
                std::max(std::abs(exact[i]) * 0x1p-11F, 0x1p-25F));
    EXPECT_EQ(brain[i].bits, to_bf16(exact[i]).bits);
  }
}

TEST(RandomWeightsTest, AreOnesInNormsAndZeroInBiases) {
  const auto weights = random_weights(find_shape("opt-125m"), DType::f32, 1);
  const auto value = [&](TensorRole role) {
    float result = -1;
    read_floats(weights->tensor({role, 3}), 5, 1, &result);
    return result;
  };
  EXPECT_EQ(value(TensorRole::attention_norm_weight), 1.0F);
  EXPECT_EQ(value(TensorRole::attention_norm_bias), 0.0F);
  EXPECT_EQ(value(TensorRole::fc2_bias), 0.0F);
  EXPECT_NE(value(TensorRole::fc2_weight), 0.0F);
}

TEST(RandomWeightsTest, ComeBackAfterRelease) {
  const auto weights = random_weights(small_config(), DType::bf16, 1);
  const TensorId id = {TensorRole::q_weight, 1};
  const auto copy = [&] {
    const TensorView view = weights->tensor(id);
    return std::vector<std::byte>(view.data.begin(), view.data.end());
  };
  const auto before = copy();
  EXPECT_EQ(weights->tensor(id).data.data(), weights->tensor(id).data.data());
  weights->release(id);
  weights->release(id);
  EXPECT_EQ(copy(), before);
}

TEST(RandomWeightsTest, RefuseTensorsThatTheShapeLacks) {
  const auto weights = random_weights(small_config(), DType::bf16, 1);
  expect_error([&] { weights->tensor({TensorRole::q_bias, 0}); }, {"no q_bias in layer 0"});
  expect_error([&] { weights->tensor({TensorRole::q_weight, 2}); }, {"no q_weight in layer 2"});
}

TEST(RandomWeightsTest, ExistForShapesWithoutCheckpoints) {
  const auto weights = random_weights(find_shape("bloom-176b"), DType::bf16, 1);
  EXPECT_EQ(weights->tensor({TensorRole::q_bias, 69}).name, "layers.69.q_bias");
}

}  // namespace
}  // namespace sluice
