#include "models/config.h"

#include "base/error.h"
#include "models/layer_types.h"
#include "models/weights.h"

namespace sluice {
namespace {

/// Whether each expert of a mixture has one.
bool is_per_expert(TensorRole role) {
  return role == TensorRole::gate_weight || role == TensorRole::fc1_weight ||
         role == TensorRole::fc2_weight;
}

/// As a double: exact up to 2^53, and never overflows on the way.
double count_parameters(const ModelConfig& config) {
  const auto experts = static_cast<double>(config.num_experts);
  // What chooses the experts of a token.
  double sum = experts * static_cast<double>(config.num_layers * config.hidden_size);
  for (const TensorId id : expected_tensors(config)) {
    double product = 1;
    for (const std::int64_t size : expected_shape(config, id.role)) {
      product *= static_cast<double>(size);
    }
    if (config.num_experts > 0 && is_per_expert(id.role)) product *= experts;
    sum += product;
  }
  return sum;
}

void check_size(std::string_view where, std::string_view name, std::int64_t size,
                std::int64_t highest) {
  if (size >= 1 && size <= highest) return;
  throw Error("{}: {} is {}, expected 1 to {}", where, name, size, highest);
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
