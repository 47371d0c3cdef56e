#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "models/activation_names.h"
#include "models/family.h"

namespace sluice {
namespace {

constexpr std::int64_t kPositionOffset = 2;  // OPT's position table starts with two unused rows

Activation read_activation(const ConfigReader& fields) {
  constexpr std::string_view key = "activation_function";
  const auto activation = parse_activation(fields.text(key, "relu"));
  if (!activation) fields.refuse(key, known_activations);
  return *activation;
}

void read(const ConfigReader& fields, ModelConfig& config) {
  if (config.hidden_size % config.num_heads != 0) {
    throw Error("{}: hidden_size {} is no multiple of num_attention_heads {}", fields.where(),
                config.hidden_size, config.num_heads);
  }
  config.head_dim = config.hidden_size / config.num_heads;
  config.embed_size = fields.count("word_embed_proj_dim", config.hidden_size);
  config.ffn_size = fields.count("ffn_dim");
  config.position = PositionKind::learned;
  config.position_offset = kPositionOffset;
  config.norm = NormKind::layer_norm;
  config.norm_affine = fields.flag("layer_norm_elementwise_affine", true);
  const bool norm_before = fields.flag("do_layer_norm_before", true);
  config.norm_place = norm_before ? NormPlace::pre : NormPlace::post;
  config.final_norm = norm_before && !fields.flag("_remove_final_layer_norm", false);
  config.activation = read_activation(fields);
  config.gated_ffn = false;
  config.qkv_bias = config.out_bias = config.ffn_bias = fields.flag("enable_bias", true);
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
  config.bos_token_id = fields.token_id("bos_token_id", 2);
  config.eos_token_ids = fields.token_ids("eos_token_id", {2});
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  fields["word_embed_proj_dim"] = config.embed_size;
  fields["ffn_dim"] = config.ffn_size;
  fields["activation_function"] = activation_name(config.activation);
  const bool norm_before = config.norm_place == NormPlace::pre;
  fields["do_layer_norm_before"] = norm_before;
  fields["_remove_final_layer_norm"] = norm_before && !config.final_norm;
  fields["layer_norm_elementwise_affine"] = config.norm_affine;
  fields["enable_bias"] = config.qkv_bias;
}

std::string_view layer_tensor_name(TensorRole role) {
  switch (role) {
    case TensorRole::attention_norm_weight:
      return "self_attn_layer_norm.weight";
    case TensorRole::attention_norm_bias:
      return "self_attn_layer_norm.bias";
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
      return "self_attn.out_proj.weight";
    case TensorRole::out_bias:
      return "self_attn.out_proj.bias";
    case TensorRole::ffn_norm_weight:
      return "final_layer_norm.weight";
    case TensorRole::ffn_norm_bias:
      return "final_layer_norm.bias";
    case TensorRole::fc1_weight:
      return "fc1.weight";
    case TensorRole::fc1_bias:
      return "fc1.bias";
    case TensorRole::fc2_weight:
      return "fc2.weight";
    case TensorRole::fc2_bias:
      return "fc2.bias";
    default:
      return to_string(role);
  }
}

std::string tensor_name(TensorId id) {
  if (id.layer >= 0) {
    return fmt::format("model.decoder.layers.{}.{}", id.layer, layer_tensor_name(id.role));
  }
  switch (id.role) {
    case TensorRole::token_embedding:
      return "model.decoder.embed_tokens.weight";
    case TensorRole::position_embedding:
      return "model.decoder.embed_positions.weight";
    case TensorRole::project_in:
      return "model.decoder.project_in.weight";
    case TensorRole::project_out:
      return "model.decoder.project_out.weight";
    case TensorRole::final_norm_weight:
      return "model.decoder.final_layer_norm.weight";
    case TensorRole::final_norm_bias:
      return "model.decoder.final_layer_norm.bias";
    case TensorRole::lm_head:
      return "lm_head.weight";
    default:
      return fmt::format("model.decoder.{}", to_string(id.role));
  }
}

}  // namespace

/// OPT, 125M to 175B; 350M with its norms after the blocks and its narrower embedding.
extern const Family opt_family = {.name = "opt",
                                  .architecture = "OPTForCausalLM",
                                  .default_max_positions = 2048,
                                  .ffn_field = "ffn_dim",
                                  .embed_field = "word_embed_proj_dim",
                                  .read = read,
                                  .write = write,
                                  .tensor_name = tensor_name};

}  // namespace sluice
