#include "graphs/model_weights.h"

#include <algorithm>

#include "base/error.h"
#include "codelets/weights/weight_packing.h"

namespace sluice {

DecoderShape decoder_shape(const ModelConfig& config, DType dtype) {
  if (config.position == PositionKind::alibi) {
    throw Error(
        "models with ALiBi positions ({}) are known for planning and simulation only; they cannot "
        "run",
        config.family);
  }
  if (config.num_experts > 0) {
    throw Error(
        "mixtures of experts ({}) are known for planning and simulation only; they cannot run",
        config.family);
  }
  return imagined_decoder_shape(config, dtype);
}

DecoderShape imagined_decoder_shape(const ModelConfig& config, DType dtype) {
  return {
      .hidden_size = config.hidden_size,
      .num_heads = config.num_heads,
      .num_kv_heads = config.num_kv_heads,
      .head_dim = config.head_dim,
      .ffn_size = config.ffn_size * std::max<std::int64_t>(1, config.experts_per_token),
      .sliding_window_tokens = config.windowed_layers.empty() ? config.sliding_window_tokens : 0,
      .norm = config.norm,
      .norm_place = config.norm_place,
      .norm_eps = config.norm_eps,
      .activation = config.activation,
      .gated_ffn = config.gated_ffn,
      .rope = config.position == PositionKind::rope,
      .dtype = dtype};
}

VectorLayout vector_layout(const ModelConfig& config) {
  VectorLayout layout;
  const auto take = [&layout](bool present, std::int64_t size) {
    const std::int64_t at = layout.num_elements;
    if (present) layout.num_elements += size;
    return present ? at : -1;
  };
  const bool norm_bias = config.norm_affine && config.norm == NormKind::layer_norm;
  layout.attention_norm_weight = take(config.norm_affine, config.hidden_size);
  layout.attention_norm_bias = take(norm_bias, config.hidden_size);
  layout.qkv_bias = take(config.qkv_bias, config.q_size() + 2 * config.kv_size());
  layout.out_bias = take(config.out_bias, config.hidden_size);
  layout.ffn_norm_weight = take(config.norm_affine, config.hidden_size);
  layout.ffn_norm_bias = take(norm_bias, config.hidden_size);
  layout.fc1_bias = take(config.ffn_bias, config.ffn_size);
  layout.fc2_bias = take(config.ffn_bias, config.hidden_size);
  layout.gate_bias = take(config.ffn_bias && config.gated_ffn, config.ffn_size);
  return layout;
}

PackedWeights::PackedWeights(const ModelConfig& config, DType dtype) : gated_ffn(config.gated_ffn) {
  const DecoderShape shape = decoder_shape(config, dtype);
  const WeightFormat plain = WeightFormat::plain(dtype);
  const auto format_of = [&plain](const WeightFormat& stored) {
    return stored.is_plain() ? plain : stored;
  };
  head = {config.embed_size, config.vocab_size, format_of(config.head_format)};
  if (config.has_projections()) {
    project_in = {config.embed_size, config.hidden_size, plain};
    project_out = {config.hidden_size, config.embed_size, plain};
  }
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const LayerFormats stored = config.layer_formats.empty()
                                    ? LayerFormats()
                                    : config.layer_formats.at(static_cast<std::size_t>(i));
    LayerWeightTypes& types = layers.emplace_back();
    types.qkv = {shape.hidden_size, shape.qkv_size(), format_of(stored.qkv)};
    types.out = {shape.q_size(), shape.hidden_size, format_of(stored.out)};
    types.fc1 = {shape.hidden_size, shape.ffn_size, format_of(stored.fc1)};
    types.fc2 = {shape.ffn_size, shape.hidden_size, format_of(stored.fc2)};
    if (gated_ffn) types.gate = {shape.hidden_size, shape.ffn_size, format_of(stored.gate)};
  }
}

std::vector<WeightType> PackedWeights::layer(std::size_t index) const {
  const LayerWeightTypes& types = layers.at(index);
  std::vector<WeightType> of_layer = {types.qkv, types.out, types.fc1, types.fc2};
  if (gated_ffn) of_layer.push_back(types.gate);
  return of_layer;
}

std::vector<WeightType> PackedWeights::all() const {
  std::vector<WeightType> types;
  if (project_in) types.push_back(*project_in);
  if (project_out) types.push_back(*project_out);
  types.push_back(head);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<WeightType> of_one = layer(i);
    types.insert(types.end(), of_one.begin(), of_one.end());
  }
  return types;
}

std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t total = static_cast<std::uint64_t>(config.num_layers) * sizeof(float) *
                        static_cast<std::uint64_t>(vector_layout(config).num_elements);
  for (const WeightType& type : PackedWeights(config, dtype).all())
    total += WeightPacking::size_bytes(type);
  return total;
}

}  // namespace sluice
