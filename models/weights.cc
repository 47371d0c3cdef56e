#include "models/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "models/family.h"

namespace sluice {
namespace {

void add_norm(const ModelConfig& config, TensorRole weight, TensorRole bias,
              std::vector<TensorRole>& roles) {
  if (!config.norm_affine) return;
  roles.push_back(weight);
  if (config.norm == NormKind::layer_norm) roles.push_back(bias);
}

void add_linear(TensorRole weight, TensorRole bias, bool has_bias, std::vector<TensorRole>& roles) {
  roles.push_back(weight);
  if (has_bias) roles.push_back(bias);
}

std::vector<TensorRole> layer_roles(const ModelConfig& config) {
  using enum TensorRole;
  std::vector<TensorRole> roles;
  add_norm(config, attention_norm_weight, attention_norm_bias, roles);
  add_linear(q_weight, q_bias, config.qkv_bias, roles);
  add_linear(k_weight, k_bias, config.qkv_bias, roles);
  add_linear(v_weight, v_bias, config.qkv_bias, roles);
  add_linear(out_weight, TensorRole::out_bias, config.out_bias, roles);
  add_norm(config, ffn_norm_weight, ffn_norm_bias, roles);
  if (config.gated_ffn) add_linear(gate_weight, gate_bias, config.ffn_bias, roles);
  add_linear(fc1_weight, fc1_bias, config.ffn_bias, roles);
  add_linear(fc2_weight, fc2_bias, config.ffn_bias, roles);
  return roles;
}

std::vector<TensorRole> roles_before_layers(const ModelConfig& config) {
  std::vector<TensorRole> roles = {TensorRole::token_embedding};
  if (config.position == PositionKind::learned) roles.push_back(TensorRole::position_embedding);
  if (config.has_projections()) roles.push_back(TensorRole::project_in);
  return roles;
}

std::vector<TensorRole> roles_after_layers(const ModelConfig& config) {
  std::vector<TensorRole> roles;
  if (config.final_norm) {
    add_norm(config, TensorRole::final_norm_weight, TensorRole::final_norm_bias, roles);
  }
  if (config.has_projections()) roles.push_back(TensorRole::project_out);
  if (!config.tied_embeddings) roles.push_back(TensorRole::lm_head);
  return roles;
}

double num_elements(const ModelConfig& config, const std::vector<TensorRole>& roles) {
  double sum = 0;
  for (TensorRole role : roles) {
    double product = 1;
    for (std::int64_t size : expected_shape(config, role)) product *= static_cast<double>(size);
    sum += product;
  }
  return sum;
}

/// As a double: exact up to 2^53, and never overflows on the way.
double estimate_parameters(const ModelConfig& config) {
  return num_elements(config, roles_before_layers(config)) +
         num_elements(config, roles_after_layers(config)) +
         static_cast<double>(config.num_layers) * num_elements(config, layer_roles(config));
}

void check_size(std::string_view where, std::string_view name, std::int64_t size,
                std::int64_t highest) {
  if (size >= 1 && size <= highest) return;
  throw Error("{}: {} is {}, expected 1 to {}", where, name, size, highest);
}

template <typename Element, typename Convert>
void convert_all(const std::byte* from, std::size_t count, float* out, Convert convert) {
  for (std::size_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from + i * sizeof(Element), sizeof(Element));
    out[i] = convert(element);
  }
}

/// half_to_float without branches, which compilers turn into vector code.
float widen_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  const std::uint32_t infinite = magnitude >= 0x7c00U ? 0x7f800000U : 0U;
  const std::uint32_t normal = ((magnitude << 13) + (112U << 23)) | infinite;
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t bits = magnitude < 0x400U ? std::bit_cast<std::uint32_t>(small) : normal;
  return std::bit_cast<float>(bits | sign);
}

}  // namespace

std::string_view to_string(TensorRole role) {
  constexpr std::array<std::string_view, 25> names = {"token_embedding",
                                                      "position_embedding",
                                                      "project_in",
                                                      "project_out",
                                                      "final_norm_weight",
                                                      "final_norm_bias",
                                                      "lm_head",
                                                      "attention_norm_weight",
                                                      "attention_norm_bias",
                                                      "q_weight",
                                                      "q_bias",
                                                      "k_weight",
                                                      "k_bias",
                                                      "v_weight",
                                                      "v_bias",
                                                      "out_weight",
                                                      "out_bias",
                                                      "ffn_norm_weight",
                                                      "ffn_norm_bias",
                                                      "gate_weight",
                                                      "fc1_weight",
                                                      "fc1_bias",
                                                      "fc2_weight",
                                                      "fc2_bias",
                                                      "gate_bias"};
  return names.at(static_cast<std::size_t>(role));
}

std::vector<TensorId> expected_tensors(const ModelConfig& config) {
  std::vector<TensorId> ids;
  for (TensorRole role : roles_before_layers(config)) ids.push_back({role});
  const auto roles = layer_roles(config);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (TensorRole role : roles) ids.push_back({role, layer});
  }
  for (TensorRole role : roles_after_layers(config)) ids.push_back({role});
  return ids;
}

std::vector<std::int64_t> expected_shape(const ModelConfig& config, TensorRole role) {
  switch (role) {
    case TensorRole::token_embedding:
    case TensorRole::lm_head:
      return {config.vocab_size, config.embed_size};
    case TensorRole::position_embedding:
      return {config.max_positions + config.position_offset, config.hidden_size};
    case TensorRole::project_in:
      return {config.hidden_size, config.embed_size};
    case TensorRole::project_out:
      return {config.embed_size, config.hidden_size};
    case TensorRole::q_weight:
      return {config.q_size(), config.hidden_size};
    case TensorRole::q_bias:
      return {config.q_size()};
    case TensorRole::k_weight:
    case TensorRole::v_weight:
      return {config.kv_size(), config.hidden_size};
    case TensorRole::k_bias:
    case TensorRole::v_bias:
      return {config.kv_size()};
    case TensorRole::out_weight:
      return {config.hidden_size, config.q_size()};
    case TensorRole::gate_weight:
    case TensorRole::fc1_weight:
      return {config.ffn_size, config.hidden_size};
    case TensorRole::gate_bias:
    case TensorRole::fc1_bias:
      return {config.ffn_size};
    case TensorRole::fc2_weight:
      return {config.hidden_size, config.ffn_size};
    case TensorRole::final_norm_weight:
    case TensorRole::final_norm_bias:
    case TensorRole::attention_norm_weight:
    case TensorRole::attention_norm_bias:
    case TensorRole::ffn_norm_weight:
    case TensorRole::ffn_norm_bias:
    case TensorRole::out_bias:
    case TensorRole::fc2_bias:
      return {config.hidden_size};
  }
  return {};
}

std::string expected_shape_fields(const ModelConfig& config, TensorRole role) {
  const Family* family = find_family(config.family);
  const std::string_view ffn = family == nullptr ? "ffn_size" : family->ffn_field;
  const std::string_view embed = family == nullptr ? "embed_size" : family->embed_field;
  constexpr std::string_view hidden = "hidden_size";
  constexpr std::string_view q = "num_attention_heads * head_dim";
  constexpr std::string_view kv = "num_key_value_heads * head_dim";
  switch (role) {
    case TensorRole::token_embedding:
    case TensorRole::lm_head:
      return fmt::format("[vocab_size, {}]", embed);
    case TensorRole::position_embedding:
      return fmt::format("[max_position_embeddings + {}, {}]", config.position_offset, hidden);
    case TensorRole::project_in:
      return fmt::format("[{}, {}]", hidden, embed);
    case TensorRole::project_out:
      return fmt::format("[{}, {}]", embed, hidden);
    case TensorRole::q_weight:
      return fmt::format("[{}, {}]", q, hidden);
    case TensorRole::q_bias:
      return fmt::format("[{}]", q);
    case TensorRole::k_weight:
    case TensorRole::v_weight:
      return fmt::format("[{}, {}]", kv, hidden);
    case TensorRole::k_bias:
    case TensorRole::v_bias:
      return fmt::format("[{}]", kv);
    case TensorRole::out_weight:
      return fmt::format("[{}, {}]", hidden, q);
    case TensorRole::gate_weight:
    case TensorRole::fc1_weight:
      return fmt::format("[{}, {}]", ffn, hidden);
    case TensorRole::gate_bias:
    case TensorRole::fc1_bias:
      return fmt::format("[{}]", ffn);
    case TensorRole::fc2_weight:
      return fmt::format("[{}, {}]", hidden, ffn);
    default:
      return fmt::format("[{}]", hidden);
  }
}

void check_config(const ModelConfig& config, std::string_view where) {
  constexpr std::int64_t highest = 1
                                   << 24;  // so that a product of two of them stays far below 2^63
  constexpr std::int64_t highest_layers = 10000;
  check_size(where, "hidden_size", config.hidden_size, highest);
  check_size(where, "embedding size", config.embed_size, highest);
  check_size(where, "number of layers", config.num_layers, highest_layers);
  check_size(where, "number of attention heads", config.num_heads, highest);
  check_size(where, "number of key-value heads", config.num_kv_heads, highest);
  check_size(where, "head_dim", config.head_dim, highest);
  check_size(where, "FFN size", config.ffn_size, highest);
  if (config.num_heads % config.num_kv_heads != 0) {
    throw Error("{}: {} attention heads are no multiple of {} key-value heads", where,
                config.num_heads, config.num_kv_heads);
  }
  constexpr double most_elements = 0x1p53;
  if (const double elements = estimate_parameters(config); elements > most_elements) {
    throw Error("{}: these sizes make {:.1e} parameters, more than 2^53; check them", where,
                elements);
  }
}

std::int64_t num_parameters(const ModelConfig& config) {
  return static_cast<std::int64_t>(estimate_parameters(config));
}

void read_floats(const TensorView& tensor, std::size_t first, std::size_t count, float* out) {
  const std::size_t size = tensor.data.size() / size_bytes(tensor.dtype);
  if (first > size || count > size - first) {
    throw Error("{}: elements {} to {} of tensor {} are asked for, it has {}", tensor.file, first,
                first + count, tensor.name, size);
  }
  const std::byte* from = tensor.data.data() + first * size_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(out, from, count * sizeof(float));
      return;
    case DType::bf16:
      convert_all<BFloat16>(from, count, out, [](BFloat16 value) { return to_float(value); });
      return;
    case DType::f16:
      convert_all<std::uint16_t>(from, count, out, widen_half);
      return;
  }
}

}  // namespace sluice
