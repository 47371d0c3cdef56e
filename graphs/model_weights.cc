#include "graphs/model_weights.h"

#include <algorithm>

#include "base/error.h"
#include "codelets/weights/weight_packing.h"

namespace sluice {

namespace {

/// Throws Error for a model that is known for planning and simulation only.
void check_runs(const ModelConfig& config) {
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
}

/// Where a vector begins that this tensor is, or is the first part of; null for the other parts.
std::int64_t* start_of(TensorRole role, VectorLayout& layout) {
  using Role = TensorRole;
  switch (role) {
    case Role::attention_norm_weight:
      return &layout.attention_norm_weight;
    case Role::attention_norm_bias:
      return &layout.attention_norm_bias;
    case Role::q_bias:
      return &layout.qkv_bias;
    case Role::out_bias:
      return &layout.out_bias;
    case Role::ffn_norm_weight:
      return &layout.ffn_norm_weight;
    case Role::ffn_norm_bias:
      return &layout.ffn_norm_bias;
    case Role::gate_bias:
      return &layout.gate_bias;
    case Role::fc1_bias:
      return &layout.fc1_bias;
    case Role::fc2_bias:
      return &layout.fc2_bias;
    case Role::q_norm_weight:
      return &layout.q_norm_weight;
    case Role::k_norm_weight:
      return &layout.k_norm_weight;
    case Role::attention_sinks:
      return &layout.attention_sinks;
    default:
      return nullptr;
  }
}

}  // namespace

DecoderShape decoder_shape(const ModelConfig& config, DType dtype) {
  check_runs(config);
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

LayerWeightTypes LayerWeights::types() const {
  LayerWeightTypes types;
  for (const LayerWeight weight : all_layer_weights) types[weight] = matrices[weight].type;
  return types;
}

WeightKind kind_of(TensorRole role) {
  using Role = TensorRole;
  switch (role) {
    case Role::q_weight:
      return WeightKind::query;
    case Role::k_weight:
      return WeightKind::key;
    case Role::v_weight:
      return WeightKind::value;
    case Role::out_weight:
      return WeightKind::out_proj;
    case Role::gate_weight:
    case Role::fc1_weight:
      return WeightKind::fc1;
    case Role::fc2_weight:
      return WeightKind::fc2;
    default:
      return WeightKind::vectors;
  }
}

VectorLayout vector_layout(const ModelConfig& config) {
  VectorLayout layout;
  for (const LayerTensor& tensor : layer_schema(config)) {
    if (tensor.weight) continue;
    if (std::int64_t* start = start_of(tensor.role, layout)) *start = layout.num_elements;
    layout.num_elements += tensor.shape[0];
  }
  return layout;
}

PackedWeights::PackedWeights(const ModelConfig& config, DType dtype)
    : matrices(layer_matrices(config)) {
  check_runs(config);
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
    for (const LayerMatrix& matrix : matrices)
      types[matrix.weight] = {matrix.in, matrix.out, format_of(stored[matrix.weight])};
  }
}

std::vector<WeightType> PackedWeights::layer(std::size_t index) const {
  std::vector<WeightType> of_layer;
  for (const LayerMatrix& matrix : matrices) of_layer.push_back(layers.at(index)[matrix.weight]);
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
