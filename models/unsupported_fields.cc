#include "models/unsupported_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {

std::span<const UnsupportedField> unsupported_fields() {
  static constexpr std::array table = {
      // Weights in another form. quantization_config has a message of its own.
      UnsupportedField{"compression_config", "{}"},
      UnsupportedField{"pruned_heads", "{}"},
      UnsupportedField{"per_layer_config", "{}"},
      // Another graph.
      UnsupportedField{"is_encoder_decoder", "false"},
      UnsupportedField{"add_cross_attention", "false"},
      UnsupportedField{"is_causal", "true"},
      UnsupportedField{"use_bidirectional_attention", "false"},
      UnsupportedField{"use_parallel_residual", "false"},
      UnsupportedField{"parallel_attn", "false"},
      UnsupportedField{"use_qk_norm", "false"},
      UnsupportedField{"qk_layernorm", "false"},
      UnsupportedField{"alibi", "false"},
      UnsupportedField{"attention_chunk_size", ""},
      // Factors and caps.
      UnsupportedField{"attn_logit_softcapping", ""},
      UnsupportedField{"final_logit_softcapping", ""},
      UnsupportedField{"query_pre_attn_scalar", ""},
      UnsupportedField{"attention_multiplier", ""},
      UnsupportedField{"embedding_multiplier", "1"},
      UnsupportedField{"residual_multiplier", "1"},
      UnsupportedField{"logits_scaling", "1"},
      UnsupportedField{"logit_scale", "1"},
      UnsupportedField{"scale_emb", "1"},
      UnsupportedField{"scale_depth", ""},
      UnsupportedField{"clip_qkv", ""},
      UnsupportedField{"qkv_clip", ""},
      // Positions.
      UnsupportedField{"rotary_pct", "1"},
      UnsupportedField{"rotary_dim", ""},
      UnsupportedField{"rope_interleave", "false"},
      UnsupportedField{"rope_interleaved", "false"},
      UnsupportedField{"use_rope", "true"},
      UnsupportedField{"no_rope_layers", "[]"},
      UnsupportedField{"no_rope_layer_interval", ""},
      UnsupportedField{"use_dynamic_ntk", "false"},
      UnsupportedField{"use_logn_attn", "false"},
  };
  return table;
}

std::span<const UnsupportedField> fields_of_experts() {
  static constexpr std::array table = {
      UnsupportedField{"num_local_experts", "1"},
      UnsupportedField{"num_experts", "1"},
      UnsupportedField{"n_routed_experts", "1"},
  };
  return table;
}

void refuse_fields(const ConfigReader& fields, std::span<const UnsupportedField> table,
                   std::span<const std::string_view> except) {
  for (const UnsupportedField& field : table) {
    if (!fields.has(field.name)) continue;
    if (std::find(except.begin(), except.end(), field.name) != except.end()) continue;
    const auto neutral = nlohmann::json::parse(field.neutral, nullptr, false);
    if (!neutral.is_discarded() && fields.equals(field.name, neutral)) continue;
    fields.refuse(field.name,
                  field.neutral.empty()
                      ? std::string("nothing (it is not supported)")
                      : fmt::format("{} or nothing (it is not supported)", field.neutral));
  }
}

}  // namespace sluice
