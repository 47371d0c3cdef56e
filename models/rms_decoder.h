#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "models/config.h"
#include "models/config_reader.h"
#include "models/weights.h"

namespace sluice {

// What Llama, Mistral, Qwen2 and Qwen3 share: RMSNorm before each block, RoPE, grouped-query
// attention, SwiGLU.

/// num_key_value_heads, head_dim, intermediate_size, rms_norm_eps, hidden_act, tie_word_embeddings,
/// RoPE. `default_kv_heads` and `default_head_dim` are the family's where the fields are missing; a
/// head_dim of 0 is hidden_size / num_attention_heads; `default_rotary_part` is read_rope()'s.
/// Throws Error for rope types and activations that are not known.
void read_rms_decoder(const ConfigReader& fields, ModelConfig& config,
                      std::int64_t default_kv_heads, std::int64_t default_head_dim = 0,
                      std::optional<double> default_rotary_part = {});
void write_rms_decoder(const ModelConfig& config, nlohmann::ordered_json& fields);

/// "model.layers.3.self_attn.q_proj.weight" and so on.
std::string rms_decoder_tensor_name(TensorId id);

/// A float as the shortest decimal that reads back as it: 1e-05, not 9.999999747378752e-06.
double shortest(float value);

}  // namespace sluice
