#include "tests/support/checkpoint_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "models/config_json.h"
#include "models/family.h"
#include "models/weights.h"

namespace sluice::testing {

using nlohmann::json;

std::string raw_safetensors(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file += data;
  return file;
}

std::string safetensors(const std::vector<TestTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  return raw_safetensors(header.dump(), data);
}

FileBytes in_memory(std::string content) {
  const auto owner = std::make_shared<const std::string>(std::move(content));
  return {"memory.safetensors", std::as_bytes(std::span(*owner)), owner};
}

json small_llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 8},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 12},
          {"vocab_size", 10},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"torch_dtype", "float32"}};
}

std::string f32_sequence(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0F);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<TestTensor> tensors_of(const json& config_text) {
  const ModelConfig config = parse_config(config_text.dump(), "config.json");
  const Family& family = *find_family(config.family);
  std::vector<TestTensor> tensors;
  for (TensorId id : expected_tensors(config)) {
    const auto shape = expected_shape(config, id);
    const std::int64_t count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    tensors.push_back({family.tensor_name(id), "F32", shape, f32_sequence(count)});
  }
  return tensors;
}

}  // namespace sluice::testing
