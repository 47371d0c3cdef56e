#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/architecture.h"
#include "base/dtype.h"
#include "base/layer_weight.h"
#include "base/weight_format.h"
#include "models/quantized/quantization_config.h"
#include "models/rope_variant.h"

namespace sluice {

/// How the linear weights of one layer are stored; query, key and value alike.
using LayerFormats = PerLayerWeight<WeightFormat>;

/// More experts in a layer are taken for a damaged file.
inline constexpr std::int64_t most_experts = 4096;

/// The architecture of one decoder, whatever its family. Counts are elements, heads, layers or
/// tokens.
struct ModelConfig {
  std::string family;  ///< "opt", "llama", "qwen2"...; shapes only: "bloom", "chinchilla"
  std::int64_t hidden_size = 0;
  std::int64_t embed_size = 0;  ///< of a token; != hidden_size only with in/out projections
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;  ///< of a mixture each expert's
  std::int64_t vocab_size = 0;
  std::int64_t num_experts = 0;        ///< 0: one FFN
  std::int64_t experts_per_token = 0;  ///< that a token goes through
  RouterKind router = RouterKind::softmax_first;
  /// After a softmax over all: the chosen experts' weights are made to add up to 1.
  bool norm_chosen = true;
  bool router_bias = false;        ///< added to the router's logits
  bool router_correction = false;  ///< a sigmoid router has one for each expert
  std::int64_t num_groups = 1;     ///< of neighbouring experts; a sigmoid router's, as what follows
  std::int64_t groups_per_token = 1;  ///< whose experts a token may go through
  float routed_scaling = 1.0F;        ///< multiplies the chosen experts' weights
  /// Of the FFN that all tokens go through beside their experts; 0: there is none.
  std::int64_t shared_ffn_size = 0;
  /// Which layers of a mixture have one FFN, of dense_ffn_size; empty: none.
  std::vector<bool> dense_layers{};
  std::int64_t dense_ffn_size = 0;
  std::int64_t max_positions = 0;    ///< longest context, tokens
  std::int64_t position_offset = 0;  ///< rows to skip in a learned position table (OPT: 2)
  /// In a layer with a window a token sees itself and window-1 before it; 0: no layer has one.
  std::int64_t sliding_window_tokens = 0;
  /// Which layers have it; empty: all.
  std::vector<bool> windowed_layers{};

  NormKind norm = NormKind::rms_norm;
  NormPlace norm_place = NormPlace::pre;
  float norm_eps = 1e-5F;
  bool norm_affine = true;  ///< norms carry weights (and, for layer_norm, biases)
  bool final_norm = true;
  Activation activation = Activation::silu;
  float swiglu_limit = 0.0F;  ///< of Activation::clamped_swiglu
  bool gated_ffn = true;      ///< SwiGLU: down(act(gate(x)) * up(x)); else fc2(act(fc1(x)))
  bool qkv_bias = false;
  bool out_bias = false;
  bool ffn_bias = false;
  bool qk_norm = false;          ///< an RMS norm of each head's query and key, before RoPE
  bool attention_sinks = false;  ///< a logit of each head that softmax counts, without a value
  PositionKind position = PositionKind::rope;
  float rope_theta = 10000.0F;
  std::optional<RopeVariant> rope_scaling;
  std::int64_t rotary_dim =
      0;  ///< RoPE turns so many of a head's dimensions, the first ones; 0: all
  bool tied_embeddings = false;  ///< the LM head is the token embedding

  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;
  DType stored_dtype = DType::bf16;  ///< config.json's torch_dtype
  /// The formats of the layers' weights, as stored; empty: all of them are plain.
  std::vector<LayerFormats> layer_formats{};
  WeightFormat head_format{};  ///< the same of the LM head
  /// How some weights are quantised; nothing: none is.
  std::optional<QuantizationConfig> quantization{};

  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
  std::int64_t rotated_dims() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  /// Of one layer; 0: it sees all.
  std::int64_t window_tokens(std::int64_t layer) const {
    const bool windowed =
        windowed_layers.empty() || windowed_layers.at(static_cast<std::size_t>(layer));
    return windowed ? sliding_window_tokens : 0;
  }
  bool has_experts(std::int64_t layer) const {
    return num_experts > 0 &&
           (dense_layers.empty() || !dense_layers.at(static_cast<std::size_t>(layer)));
  }
  /// Of a layer's FFN, or of each of its experts.
  std::int64_t ffn_size_of(std::int64_t layer) const {
    return num_experts > 0 && !has_experts(layer) ? dense_ffn_size : ffn_size;
  }
  /// Of any layer's FFN or expert.
  std::int64_t widest_ffn() const { return std::max(ffn_size, dense_ffn_size); }
  /// How many layers see all in spite of sliding_window_tokens.
  std::int64_t num_full_attention_layers() const {
    return std::count(windowed_layers.begin(), windowed_layers.end(), false);
  }
  bool has_projections() const { return embed_size != hidden_size; }
};

/// Throws Error when the sizes do not fit each other or are absurd (heads no multiple of KV heads,
/// more elements than 2^53). `where` names the file or shape.
void check_config(const ModelConfig& config, std::string_view where);

/// Elements of all weights of a model of this shape (tied embeddings counted once).
std::int64_t num_parameters(const ModelConfig& config);

}  // namespace sluice
