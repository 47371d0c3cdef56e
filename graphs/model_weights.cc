#include "graphs/model_weights.h"

#include <algorithm>

#include "base/error.h"

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

PackedWeights::PackedWeights(const ModelConfig& config, DType dtype)
    : head{config.embed_size, config.vocab_size, dtype}, num_layers_(config.num_layers) {
  const DecoderShape shape = decoder_shape(config, dtype);
  if (config.has_projections()) {
    project_in = {config.embed_size, config.hidden_size, dtype};
    project_out = {config.hidden_size, config.embed_size, dtype};
  }
  qkv = {shape.hidden_size, shape.qkv_size(), dtype};
  out = {shape.q_size(), shape.hidden_size, dtype};
  fc1 = {shape.hidden_size, shape.ffn_size, dtype};
  fc2 = {shape.ffn_size, shape.hidden_size, dtype};
  if (shape.gated_ffn) gate = fc1;
}

std::vector<LinearShape> PackedWeights::layer() const {
  std::vector<LinearShape> shapes = {qkv, out, fc1, fc2};
  if (gate) shapes.push_back(*gate);
  return shapes;
}

std::vector<LinearShape> PackedWeights::all() const {
  std::vector<LinearShape> shapes;
  if (project_in) shapes.push_back(*project_in);
  if (project_out) shapes.push_back(*project_out);
  shapes.push_back(head);
  const std::vector<LinearShape> of_one = layer();
  for (std::int64_t i = 0; i < num_layers_; ++i)
    shapes.insert(shapes.end(), of_one.begin(), of_one.end());
  return shapes;
}

std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t total = static_cast<std::uint64_t>(config.num_layers) * sizeof(float) *
                        static_cast<std::uint64_t>(vector_layout(config).num_elements);
  for (const LinearShape& shape : PackedWeights(config, dtype).all())
    total += PackedLayout::get(shape).size_bytes();
  return total;
}

}  // namespace sluice
