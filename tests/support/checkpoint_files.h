#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/files.h"

namespace sluice::testing {

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

/// A safetensors file with this header text, then this data.
std::string raw_safetensors(std::string_view header, std::string_view data);
/// A well-formed one.
std::string safetensors(const std::vector<TestTensor>& tensors);
/// Its bytes in memory.
FileBytes in_memory(std::string content);

/// The config.json of a Llama with 2 layers: hidden 8, 4 heads, 2 KV heads, FFN 12, vocabulary 10.
nlohmann::json small_llama();
/// Every tensor that a model of this config.json has, F32, element i of each being i.
std::vector<TestTensor> tensors_of(const nlohmann::json& config);
std::string f32_sequence(std::int64_t count);

}  // namespace sluice::testing
