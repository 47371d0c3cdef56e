#include "models/weights.h"

#include <fmt/format.h>

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

}  // namespace

std::string_view to_string(TensorRole role) {
  static constexpr std::string_view names[] = {
      "token_embedding",
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
      "gate_bias",
  };
  return names[static_cast<std::size_t>(role)];
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

}  // namespace sluice
