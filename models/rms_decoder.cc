#include "models/rms_decoder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr double kHighestTheta = 1e12;
constexpr double kHighestFactor = 1e6;

RopeScaling read_llama3_scaling(const ConfigReader& rope, const ConfigReader& fields) {
  constexpr std::string_view original = "original_max_position_embeddings";
  RopeScaling scaling;
  scaling.factor = static_cast<float>(rope.number("factor", 1.0, kHighestFactor));
  scaling.low_freq_factor =
      static_cast<float>(rope.number("low_freq_factor", 1e-6, kHighestFactor));
  scaling.high_freq_factor =
      static_cast<float>(rope.number("high_freq_factor", 1e-6, kHighestFactor));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.refuse("high_freq_factor",
                fmt::format("more than low_freq_factor ({})", scaling.low_freq_factor));
  }
  scaling.original_max_positions =
      fields.has(original) ? fields.count(original) : rope.count(original);
  return scaling;
}

void read_rope(const ConfigReader& fields, ModelConfig& config) {
  config.position = PositionKind::rope;
  config.rope_theta =
      static_cast<float>(fields.number("rope_theta", 1.0, kHighestTheta, config.rope_theta));
  if (fields.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "1 (rotating a part of each head is not supported)");
  }
  const auto rope =
      fields.object(fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!rope) return;
  if (rope->has("rope_theta")) {
    config.rope_theta = static_cast<float>(rope->number("rope_theta", 1.0, kHighestTheta));
  }
  if (rope->number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    rope->refuse("partial_rotary_factor", "1 (rotating a part of each head is not supported)");
  }
  const std::string_view type_key = rope->has("rope_type") ? "rope_type" : "type";
  const std::string type = rope->text(type_key, "default");
  if (type == "llama3") {
    config.rope_scaling = read_llama3_scaling(*rope, fields);
  } else if (type != "default") {
    rope->refuse(type_key, "\"default\" or \"llama3\" (other RoPE scalings are not supported)");
  }
}

void read_head_dim(const ConfigReader& fields, ModelConfig& config) {
  if (fields.has("head_dim")) {
    config.head_dim = fields.count("head_dim");
    return;
  }
  if (config.hidden_size % config.num_heads != 0) {
    throw Error(
        "{}: hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim",
        fields.where(), config.hidden_size, config.num_heads);
  }
  config.head_dim = config.hidden_size / config.num_heads;
}

void write_rope(const ModelConfig& config, ordered_json& fields) {
  fields["rope_theta"] = shortest(config.rope_theta);
  fields["rope_scaling"] = nullptr;
  if (!config.rope_scaling) return;
  const RopeScaling& scaling = *config.rope_scaling;
  fields["rope_scaling"] = {{"factor", shortest(scaling.factor)},
                            {"low_freq_factor", shortest(scaling.low_freq_factor)},
                            {"high_freq_factor", shortest(scaling.high_freq_factor)},
                            {"original_max_position_embeddings", scaling.original_max_positions},
                            {"rope_type", "llama3"}};
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
    default:
      return to_string(role);
  }
}

}  // namespace

void read_rms_decoder(const ConfigReader& fields, ModelConfig& config) {
  config.norm = NormKind::rms_norm;
  config.gated_ffn = true;
  config.num_kv_heads = fields.count("num_key_value_heads", config.num_heads);
  config.ffn_size = fields.count("intermediate_size");
  config.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-30, 1.0, 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "\"silu\"");
  config.activation = Activation::silu;
  read_head_dim(fields, config);
  read_rope(fields, config);
  if (config.head_dim % 2 != 0) {
    throw Error("{}: head_dim {} is odd; RoPE rotates pairs and needs an even one", fields.where(),
                config.head_dim);
  }
}

void write_rms_decoder(const ModelConfig& config, ordered_json& fields) {
  fields["num_key_value_heads"] = config.num_kv_heads;
  fields["head_dim"] = config.head_dim;
  fields["intermediate_size"] = config.ffn_size;
  fields["hidden_act"] = "silu";
  fields["rms_norm_eps"] = shortest(config.norm_eps);
  write_rope(config, fields);
}

std::string rms_decoder_tensor_name(TensorId id) {
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
