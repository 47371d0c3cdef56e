#include "models/config.h"

#include <algorithm>

#include "base/error.h"
#include "models/layer_schema.h"
#include "models/layer_types.h"
#include "models/weights.h"

namespace sluice {
namespace {

/// As a double: exact up to 2^53, and never overflows on the way.
double count_parameters(const ModelConfig& config) {
  double sum = 0;
  const auto add = [&](const std::vector<std::int64_t>& shape, std::int64_t count) {
    double product = 1;
    for (const std::int64_t size : shape) product *= static_cast<double>(size);
    sum += product * static_cast<double>(count);
  };
  for (const TensorId id : tensors_outside_layers(config)) add(expected_shape(config, id), 1);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerTensor& tensor : layer_schema(config, layer))
      add(tensor.shape, tensor.of_each_expert ? config.num_experts : 1);
  }
  return sum;
}

void check_size(std::string_view where, std::string_view name, std::int64_t size,
                std::int64_t highest) {
  if (size >= 1 && size <= highest) return;
  throw Error("{}: {} is {}, expected 1 to {}", where, name, size, highest);
}

void check_experts(const ModelConfig& config, std::string_view where) {
  if (config.num_experts == 0) return;
  constexpr std::int64_t most_of_all_layers = 1 << 20;
  check_size(where, "number of experts", config.num_experts, most_experts);
  check_size(where, "number of experts of a token", config.experts_per_token, config.num_experts);
  check_size(where, "number of experts of all layers", config.num_layers * config.num_experts,
             most_of_all_layers);
  if (config.shared_ffn_size != 0)
    check_size(where, "FFN size of the shared experts", config.shared_ffn_size, 1 << 24);
  if (std::find(config.dense_layers.begin(), config.dense_layers.end(), true) !=
      config.dense_layers.end())
    check_size(where, "FFN size of layers without experts", config.dense_ffn_size, 1 << 24);
}

}  // namespace

void check_config(const ModelConfig& config, std::string_view where) {
  constexpr std::int64_t highest = 1 << 24;  // so that products of two stay far below 2^63
  constexpr std::int64_t highest_id = INT32_MAX;
  check_size(where, "hidden_size", config.hidden_size, highest);
  check_size(where, "embedding size", config.embed_size, highest);
  check_size(where, "number of layers", config.num_layers, most_layers);
  check_size(where, "number of attention heads", config.num_heads, highest);
  check_size(where, "number of key-value heads", config.num_kv_heads, highest);
  check_size(where, "head_dim", config.head_dim, highest);
  check_size(where, "FFN size", config.ffn_size, highest);
  check_experts(config, where);
  check_size(where, "vocabulary size", config.vocab_size, highest_id);
  check_size(where, "number of positions", config.max_positions, highest_id);
  if (config.num_heads % config.num_kv_heads != 0) {
    throw Error("{}: {} attention heads are no multiple of {} key-value heads", where,
                config.num_heads, config.num_kv_heads);
  }
  constexpr double most_elements = 0x1p53;
  if (const double elements = count_parameters(config); elements > most_elements) {
    throw Error("{}: these sizes make {:.1e} parameters, more than 2^53; check them", where,
                elements);
  }
}

std::int64_t num_parameters(const ModelConfig& config) {
  return static_cast<std::int64_t>(count_parameters(config));
}

}  // namespace sluice
