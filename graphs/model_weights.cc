#include "graphs/model_weights.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "codelets/weights/weight_packing.h"
#include "models/family.h"

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
  if (find_family(config.family) == nullptr) {
    throw Error("models of family {} are known for planning and simulation only; they cannot run",
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
      .ffn_size = config.ffn_size,
      .sliding_window_tokens = config.windowed_layers.empty() ? config.sliding_window_tokens : 0,
      .norm = config.norm,
      .norm_place = config.norm_place,
      .norm_eps = config.norm_eps,
      .activation = config.activation,
      .gated_ffn = config.gated_ffn,
      .rope = config.position == PositionKind::rope,
      .dtype = dtype};
}

MixtureShape mixture_shape(const ModelConfig& config) {
  return {.num_experts = static_cast<std::int32_t>(config.num_experts),
          .experts_per_token = static_cast<std::int32_t>(config.experts_per_token),
          .router = config.router,
          .norm_chosen = config.norm_chosen};
}

LayerWeightTypes LayerWeights::types() const {
  LayerWeightTypes types;
  for (const LayerWeight weight : all_layer_weights) types[weight] = matrices[weight].type;
  if (experts.cut.num_experts > 0) {
    types[LayerWeight::gate] = experts.layout.gate;
    types[LayerWeight::fc1] = experts.layout.fc1;
    types[LayerWeight::fc2] = experts.layout.fc2;
  }
  return types;
}

std::span<const WeightKind> kinds_of(LayerWeight weight) {
  using Kind = WeightKind;
  static constexpr std::array attention = {Kind::query, Kind::key, Kind::value};
  static constexpr std::array out = {Kind::out_proj};
  static constexpr std::array fc1 = {Kind::fc1};
  static constexpr std::array fc2 = {Kind::fc2};
  switch (weight) {
    case LayerWeight::qkv:
      return attention;
    case LayerWeight::out:
    case LayerWeight::router:
      return out;
    case LayerWeight::gate:
    case LayerWeight::fc1:
      return fc1;
    default:
      return fc2;
  }
}

WeightKind kind_of(TensorRole role) {
  if (role == TensorRole::k_weight) return WeightKind::key;
  if (role == TensorRole::v_weight) return WeightKind::value;
  const std::optional<LayerWeight> weight = weight_of(role);
  return weight ? kinds_of(*weight).front() : WeightKind::vectors;
}

VectorLayout vector_layout(const ModelConfig& config) {
  VectorLayout layout;
  for (const LayerTensor& tensor : layer_schema(config, 0)) {
    if (!tensor.is_vector()) continue;
    if (std::int64_t* start = start_of(tensor.role, layout)) *start = layout.num_elements;
    layout.num_elements += tensor.shape[0];
  }
  return layout;
}

std::span<const std::int32_t> hot_experts_of(const HotExperts& hot, std::int64_t layer) {
  const auto index = static_cast<std::size_t>(layer);
  return index < hot.size() ? std::span<const std::int32_t>(hot[index])
                            : std::span<const std::int32_t>();
}

void check_hot_experts(const ModelConfig& config, const HotExperts& hot) {
  if (std::ssize(hot) > config.num_layers) {
    throw Error("hot experts of {} layers are given, the model has {}", hot.size(),
                config.num_layers);
  }
  for (std::int64_t layer = 0; layer < std::ssize(hot); ++layer) {
    const std::int64_t num_experts = config.has_experts(layer) ? config.num_experts : 0;
    std::vector<bool> named(static_cast<std::size_t>(num_experts));
    for (const std::int32_t expert : hot_experts_of(hot, layer)) {
      if (expert < 0 || expert >= num_experts) {
        throw Error("layer {}'s hot experts name {}, expected numbers below {}, its experts", layer,
                    expert, num_experts);
      }
      if (named[static_cast<std::size_t>(expert)])
        throw Error("layer {}'s hot experts name {} twice, expected each once", layer, expert);
      named[static_cast<std::size_t>(expert)] = true;
    }
  }
}

PackedWeights::PackedWeights(const ModelConfig& config, DType dtype, std::size_t chunk_bytes,
                             const HotExperts& its_hot_experts)
    : hot_experts(its_hot_experts) {
  check_runs(config);
  check_hot_experts(config, hot_experts);
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
    for (const LayerMatrix& matrix : layer_matrices(config, i))
      types[matrix.weight] = {matrix.in, matrix.out, format_of(stored[matrix.weight])};
    ExpertChunks& chunks = experts.emplace_back();
    if (config.has_experts(i)) {
      chunks = ExpertChunks::cut(config.num_experts, ExpertLayout::of(types).size_bytes(),
                                 chunk_bytes, std::ssize(hot_experts_of(hot_experts, i)));
    }
  }
}

std::vector<WeightType> PackedWeights::types_of_layer(std::size_t index) const {
  std::vector<WeightType> types;
  for (const WeightType& type : layers.at(index)) {
    if (type.out > 0) types.push_back(type);
  }
  return types;
}

std::vector<std::size_t> PackedWeights::layer_sizes(std::size_t index) const {
  const LayerWeightTypes& types = layers.at(index);
  const ExpertChunks& chunks = experts.at(index);
  std::vector<std::size_t> sizes;
  for (const LayerWeight weight : all_layer_weights) {
    const bool in_chunks = chunks.num_experts > 0 && is_of_ffn(weight);
    if (types[weight].out > 0 && !in_chunks)
      sizes.push_back(WeightPacking::size_bytes(types[weight]));
  }
  const std::size_t of_expert = ExpertLayout::of(types).size_bytes();
  for (std::int32_t chunk = 0; chunk < chunks.count(); ++chunk)
    sizes.push_back(static_cast<std::size_t>(chunks.size_of(chunk)) * of_expert);
  return sizes;
}

std::vector<std::size_t> PackedWeights::sizes() const {
  std::vector<std::size_t> sizes;
  for (const auto& type : {project_in, project_out, std::optional(head)}) {
    if (type) sizes.push_back(WeightPacking::size_bytes(*type));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<std::size_t> of_one = layer_sizes(i);
    sizes.insert(sizes.end(), of_one.begin(), of_one.end());
  }
  return sizes;
}

std::string PackedWeights::identity() const {
  std::string text;
  const auto add = [&](const WeightType& type) {
    const WeightPacking& packing = WeightPacking::of(type.format);
    text += fmt::format("{}x{}:{}/{} ", type.out, type.in, packing.size_of(type),
                        packing.num_panels(type));
    if (!type.format.is_plain()) text += fmt::format("{} ", to_string(type.format));
  };
  for (const auto& type : {project_in, project_out, std::optional(head)}) {
    if (type) add(*type);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const WeightType& type : types_of_layer(i)) add(type);
    if (experts[i].num_experts == 0) continue;
    text += fmt::format("{} experts by {} ", experts[i].num_experts, experts[i].per_chunk);
    if (experts[i].num_hot == 0) continue;
    text += fmt::format("hot by {}:", experts[i].per_hot_chunk);
    const ExpertOrder order(experts[i].num_experts,
                            hot_experts_of(hot_experts, static_cast<std::int64_t>(i)));
    for (std::int32_t place = 0; place < experts[i].num_hot; ++place)
      text += fmt::format(" {}", order.experts[static_cast<std::size_t>(place)]);
    text += " ";
  }
  return text;
}

std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t total = static_cast<std::uint64_t>(config.num_layers) * sizeof(float) *
                        static_cast<std::uint64_t>(vector_layout(config).num_elements);
  for (const std::size_t size : PackedWeights(config, dtype).sizes()) total += size;
  return total;
}

}  // namespace sluice
