#include "models/rms_decoder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/activation_names.h"
#include "models/rope_config.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

void read_head_dim(const ConfigReader& fields, ModelConfig& config, std::int64_t fallback) {
  if (fields.has("head_dim")) {
    config.head_dim = fields.count("head_dim");
    return;
  }
  if (fallback > 0) {
    config.head_dim = fallback;
    return;
  }
  if (config.hidden_size % config.num_heads != 0) {
    throw Error(
        "{}: hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim",
        fields.where(), config.hidden_size, config.num_heads);
  }
  config.head_dim = config.hidden_size / config.num_heads;
}

std::string_view layer_tensor_name(TensorRole role) {
  switch (role) {
    case TensorRole::attention_norm_weight:
      return "input_layernorm.weight";
    case TensorRole::attention_norm_bias:
      return "input_layernorm.bias";
    case TensorRole::q_weight:
      return "self_attn.q_proj.weight";
    case TensorRole::q_bias:
      return "self_attn.q_proj.bias";
    case TensorRole::k_weight:
      return "self_attn.k_proj.weight";
    case TensorRole::k_bias:
      return "self_attn.k_proj.bias";
    case TensorRole::v_weight:
      return "self_attn.v_proj.weight";
    case TensorRole::v_bias:
      return "self_attn.v_proj.bias";
    case TensorRole::out_weight:
      return "self_attn.o_proj.weight";
    case TensorRole::out_bias:
      return "self_attn.o_proj.bias";
    case TensorRole::ffn_norm_weight:
      return "post_attention_layernorm.weight";
    case TensorRole::ffn_norm_bias:
      return "post_attention_layernorm.bias";
    case TensorRole::gate_weight:
      return "mlp.gate_proj.weight";
    case TensorRole::gate_bias:
      return "mlp.gate_proj.bias";
    case TensorRole::fc1_weight:
      return "mlp.up_proj.weight";
    case TensorRole::fc1_bias:
      return "mlp.up_proj.bias";
    case TensorRole::fc2_weight:
      return "mlp.down_proj.weight";
    case TensorRole::fc2_bias:
      return "mlp.down_proj.bias";
    case TensorRole::router_weight:
      return "mlp.gate.weight";
    case TensorRole::router_bias:
      return "mlp.gate.bias";
    case TensorRole::router_correction:
      return "mlp.gate.e_score_correction_bias";
    case TensorRole::shared_gate_weight:
      return "mlp.shared_experts.gate_proj.weight";
    case TensorRole::shared_fc1_weight:
      return "mlp.shared_experts.up_proj.weight";
    case TensorRole::shared_fc2_weight:
      return "mlp.shared_experts.down_proj.weight";
    case TensorRole::q_norm_weight:
      return "self_attn.q_norm.weight";
    case TensorRole::k_norm_weight:
      return "self_attn.k_norm.weight";
    case TensorRole::attention_sinks:
      return "self_attn.sinks";
    default:
      return to_string(role);
  }
}

}  // namespace

void read_rms_decoder(const ConfigReader& fields, ModelConfig& config,
                      std::int64_t default_kv_heads, std::int64_t default_head_dim,
                      std::optional<double> default_rotary_part) {
  config.norm = NormKind::rms_norm;
  config.gated_ffn = true;
  constexpr std::string_view kv_heads = "num_key_value_heads";
  config.num_kv_heads =
      fields.count(kv_heads, fields.is_null(kv_heads) ? config.num_heads : default_kv_heads);
  config.ffn_size = fields.count("intermediate_size");
  config.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-30, 1.0, 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  const auto activation = parse_activation(fields.text("hidden_act", "silu"));
  if (!activation) fields.refuse("hidden_act", known_activations);
  config.activation = *activation;
  read_head_dim(fields, config, default_head_dim);
  read_rope(fields, config, default_rotary_part);
  if (config.head_dim % 2 != 0) {
    throw Error("{}: head_dim {} is odd; RoPE rotates pairs and needs an even one", fields.where(),
                config.head_dim);
  }
}

void write_rms_decoder(const ModelConfig& config, ordered_json& fields) {
  fields["num_key_value_heads"] = config.num_kv_heads;
  fields["head_dim"] = config.head_dim;
  fields["intermediate_size"] = config.ffn_size;
  fields["hidden_act"] = activation_name(config.activation);
  fields["rms_norm_eps"] = shortest(config.norm_eps);
  write_rope(config, fields);
}

std::string rms_decoder_tensor_name(TensorId id) {
  if (id.expert >= 0) {
    constexpr std::string_view of_ffn = "mlp.";
    std::string_view name = layer_tensor_name(id.role);
    name.remove_prefix(of_ffn.size());
    return fmt::format("model.layers.{}.mlp.experts.{}.{}", id.layer, id.expert, name);
  }
  if (id.layer >= 0) return fmt::format("model.layers.{}.{}", id.layer, layer_tensor_name(id.role));
  switch (id.role) {
    case TensorRole::token_embedding:
      return "model.embed_tokens.weight";
    case TensorRole::final_norm_weight:
      return "model.norm.weight";
    case TensorRole::lm_head:
      return "lm_head.weight";
    default:
      return fmt::format("model.{}", to_string(id.role));
  }
}

double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

}  // namespace sluice
