#include "models/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "models/family.h"
#include "models/layer_schema.h"
#include "models/quantized/quantized_tensor.h"

namespace sluice {
namespace {

std::vector<TensorRole> roles_before_layers(const ModelConfig& config) {
  std::vector<TensorRole> roles = {TensorRole::token_embedding};
  if (config.position == PositionKind::learned) roles.push_back(TensorRole::position_embedding);
  if (config.has_projections()) roles.push_back(TensorRole::project_in);
  return roles;
}

std::vector<TensorRole> roles_after_layers(const ModelConfig& config) {
  std::vector<TensorRole> roles;
  if (config.final_norm && config.norm_affine) {
    roles.push_back(TensorRole::final_norm_weight);
    if (config.norm == NormKind::layer_norm) roles.push_back(TensorRole::final_norm_bias);
  }
  if (config.has_projections()) roles.push_back(TensorRole::project_out);
  if (!config.tied_embeddings) roles.push_back(TensorRole::lm_head);
  return roles;
}

}  // namespace

std::string_view to_string(TensorRole role) {
  static constexpr std::string_view names[] = {
      "token_embedding",
      "position_embedding",
      "project_in",
      "project_out",
      "final_norm_weight",
      "final_norm_bias",
      "lm_head",
      "attention_norm_weight",
      "attention_norm_bias",
      "q_weight",
      "q_bias",
      "k_weight",
      "k_bias",
      "v_weight",
      "v_bias",
      "out_weight",
      "out_bias",
      "ffn_norm_weight",
      "ffn_norm_bias",
      "gate_weight",
      "fc1_weight",
      "fc1_bias",
      "fc2_weight",
      "fc2_bias",
      "gate_bias",
      "router_weight",
      "q_norm_weight",
      "k_norm_weight",
      "attention_sinks",
      "router_bias",
      "router_correction",
      "shared_gate_weight",
      "shared_fc1_weight",
      "shared_fc2_weight",
  };
  return names[static_cast<std::size_t>(role)];
}

std::vector<TensorId> tensors_outside_layers(const ModelConfig& config) {
  std::vector<TensorId> ids;
  for (const TensorRole role : roles_before_layers(config)) ids.push_back({role});
  for (const TensorRole role : roles_after_layers(config)) ids.push_back({role});
  return ids;
}

std::vector<TensorId> expected_tensors(const ModelConfig& config) {
  std::vector<TensorId> ids;
  for (TensorRole role : roles_before_layers(config)) ids.push_back({role});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<LayerTensor> of_each_expert;
    for (LayerTensor& tensor : layer_schema(config, layer)) {
      if (tensor.of_each_expert) {
        of_each_expert.push_back(std::move(tensor));
      } else {
        ids.push_back(tensor.id(layer));
      }
    }
    if (of_each_expert.empty()) continue;
    for (std::int64_t expert = 0; expert < config.num_experts; ++expert) {
      for (const LayerTensor& tensor : of_each_expert) ids.push_back(tensor.id(layer, expert));
    }
  }
  for (TensorRole role : roles_after_layers(config)) ids.push_back({role});
  return ids;
}

std::string place_of(TensorId id) {
  if (id.expert < 0) return fmt::format("layer {}", id.layer);
  return fmt::format("layer {}, expert {}", id.layer, id.expert);
}

std::vector<std::int64_t> expected_shape(const ModelConfig& config, TensorId id) {
  const std::int64_t ffn_size = id.layer < 0 ? config.ffn_size : config.ffn_size_of(id.layer);
  switch (id.role) {
    case TensorRole::token_embedding:
    case TensorRole::lm_head:
      return {config.vocab_size, config.embed_size};
    case TensorRole::position_embedding:
      return {config.max_positions + config.position_offset, config.hidden_size};
    case TensorRole::project_in:
      return {config.hidden_size, config.embed_size};
    case TensorRole::project_out:
      return {config.embed_size, config.hidden_size};
    case TensorRole::q_weight:
      return {config.q_size(), config.hidden_size};
    case TensorRole::q_bias:
      return {config.q_size()};
    case TensorRole::k_weight:
    case TensorRole::v_weight:
      return {config.kv_size(), config.hidden_size};
    case TensorRole::k_bias:
    case TensorRole::v_bias:
      return {config.kv_size()};
    case TensorRole::out_weight:
      return {config.hidden_size, config.q_size()};
    case TensorRole::gate_weight:
    case TensorRole::fc1_weight:
      return {ffn_size, config.hidden_size};
    case TensorRole::gate_bias:
    case TensorRole::fc1_bias:
      return {ffn_size};
    case TensorRole::fc2_weight:
      return {config.hidden_size, ffn_size};
    case TensorRole::router_weight:
      return {config.num_experts, config.hidden_size};
    case TensorRole::router_correction:
      return {config.num_experts};
    case TensorRole::shared_gate_weight:
    case TensorRole::shared_fc1_weight:
      return {config.shared_ffn_size, config.hidden_size};
    case TensorRole::shared_fc2_weight:
      return {config.hidden_size, config.shared_ffn_size};
    case TensorRole::final_norm_weight:
    case TensorRole::final_norm_bias:
    case TensorRole::attention_norm_weight:
    case TensorRole::attention_norm_bias:
    case TensorRole::ffn_norm_weight:
    case TensorRole::ffn_norm_bias:
    case TensorRole::out_bias:
    case TensorRole::fc2_bias:
      return {config.hidden_size};
    case TensorRole::q_norm_weight:
    case TensorRole::k_norm_weight:
      return {config.head_dim};
    case TensorRole::attention_sinks:
      return {config.num_heads};
    case TensorRole::router_bias:
      return {config.num_experts};
  }
  return {};
}

std::string expected_shape_fields(const ModelConfig& config, TensorId id) {
  const Family* family = find_family(config.family);
  std::string_view ffn = family == nullptr ? "ffn_size" : family->ffn_field;
  if (id.expert >= 0 && family != nullptr && !family->expert_ffn_field.empty())
    ffn = family->expert_ffn_field;
  const std::string_view embed = family == nullptr ? "embed_size" : family->embed_field;
  const std::string_view experts = family == nullptr ? "num_experts" : family->experts_field;
  constexpr std::string_view hidden = "hidden_size";
  constexpr std::string_view q = "num_attention_heads * head_dim";
  constexpr std::string_view kv = "num_key_value_heads * head_dim";
  switch (id.role) {
    case TensorRole::token_embedding:
    case TensorRole::lm_head:
      return fmt::format("[vocab_size, {}]", embed);
    case TensorRole::position_embedding:
      return fmt::format("[max_position_embeddings + {}, {}]", config.position_offset, hidden);
    case TensorRole::project_in:
      return fmt::format("[{}, {}]", hidden, embed);
    case TensorRole::project_out:
      return fmt::format("[{}, {}]", embed, hidden);
    case TensorRole::q_weight:
      return fmt::format("[{}, {}]", q, hidden);
    case TensorRole::q_bias:
      return fmt::format("[{}]", q);
    case TensorRole::k_weight:
    case TensorRole::v_weight:
      return fmt::format("[{}, {}]", kv, hidden);
    case TensorRole::k_bias:
    case TensorRole::v_bias:
      return fmt::format("[{}]", kv);
    case TensorRole::out_weight:
      return fmt::format("[{}, {}]", hidden, q);
    case TensorRole::gate_weight:
    case TensorRole::fc1_weight:
      return fmt::format("[{}, {}]", ffn, hidden);
    case TensorRole::gate_bias:
    case TensorRole::fc1_bias:
      return fmt::format("[{}]", ffn);
    case TensorRole::fc2_weight:
      return fmt::format("[{}, {}]", hidden, ffn);
    case TensorRole::router_weight:
      return fmt::format("[{}, {}]", experts, hidden);
    case TensorRole::router_correction:
      return fmt::format("[{}]", experts);
    case TensorRole::shared_gate_weight:
    case TensorRole::shared_fc1_weight:
      return fmt::format("[n_shared_experts * moe_intermediate_size, {}]", hidden);
    case TensorRole::shared_fc2_weight:
      return fmt::format("[{}, n_shared_experts * moe_intermediate_size]", hidden);
    case TensorRole::q_norm_weight:
    case TensorRole::k_norm_weight:
      return "[head_dim]";
    case TensorRole::attention_sinks:
      return "[num_attention_heads]";
    case TensorRole::router_bias:
      return "[num_experts]";
    default:
      return fmt::format("[{}]", hidden);
  }
}

std::shared_ptr<const QuantizedTensor> WeightSource::quantized(TensorId /*id*/) const {
  return nullptr;
}

WeightFormat WeightSource::format(TensorId id) const {
  if (const auto coded = quantized(id)) return coded->format();
  return WeightFormat::plain(tensor(id).dtype);
}

namespace {

/// "q_weight", "fc1_weight of expert 3".
std::string name_in_layer(TensorId id) {
  std::string name(to_string(id.role));
  if (id.expert >= 0) name += fmt::format(" of expert {}", id.expert);
  return name;
}

}  // namespace

WeightFormat common_format(const WeightSource& weights, std::span<const TensorId> ids) {
  const auto without_zero_points = [](WeightFormat format) {
    format.has_zero_points = false;
    return format;
  };
  const auto text = [](const WeightFormat& format) {
    return format.is_plain() ? to_string(format)
                             : fmt::format("{} with scales of type {}", to_string(format),
                                           to_string(format.scales));
  };
  WeightFormat common = weights.format(ids.front());
  for (const TensorId id : ids.subspan(1)) {
    const WeightFormat format = weights.format(id);
    if (without_zero_points(format) != without_zero_points(common)) {
      throw Error(
          "layer {}: {} is {}, {} is {}: they become one weight, so their formats must be the "
          "same; get a model that has all of them quantised alike, or none",
          id.layer, name_in_layer(ids.front()), text(common), name_in_layer(id), text(format));
    }
    common.has_zero_points |= format.has_zero_points;
  }
  return common;
}

void set_formats(const WeightSource& weights, ModelConfig& config) {
  config.layer_formats.clear();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    LayerFormats& formats = config.layer_formats.emplace_back();
    for (const LayerMatrix& matrix : layer_matrices(config, layer)) {
      const std::int64_t count = matrix.of_each_expert ? config.num_experts : 1;
      std::vector<TensorId> ids;
      for (std::int64_t expert = 0; expert < count; ++expert) {
        const std::vector<TensorId> of_one = matrix.ids(layer, expert);
        ids.insert(ids.end(), of_one.begin(), of_one.end());
      }
      formats[matrix.weight] = common_format(weights, ids);
    }
  }
  if (!config.tied_embeddings) config.head_format = weights.format({TensorRole::lm_head});
}

void set_formats(const WeightFormat& layers, const WeightFormat& head, ModelConfig& config) {
  const auto check = [](const WeightFormat& format, std::int64_t in) {
    const bool divides = format.group == 0 || in % format.group == 0;
    const bool may_end_early = format.codes == WeightFormat::Codes::fp8;
    if (format.is_plain() || divides || may_end_early) return;
    throw Error(
        "{}: a group of {} inputs does not divide a weight of {}; expected a group that does",
        to_string(format), format.group, in);
  };
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerMatrix& matrix : layer_matrices(config, layer)) {
      if (matrix.weight != LayerWeight::router) check(layers, matrix.in);
    }
  }
  check(head, config.embed_size);
  config.layer_formats.clear();
  if (!layers.is_plain()) {
    LayerFormats formats;
    std::fill(formats.begin(), formats.end(), layers);
    formats[LayerWeight::router] = {};  // small, and what it decides is not to change
    config.layer_formats.assign(static_cast<std::size_t>(config.num_layers), formats);
  }
  config.head_format = head;
  if (!head.is_plain()) config.tied_embeddings = false;
}

WeightFormat stored_format(const ModelConfig& config, TensorId id) {
  if (id.role == TensorRole::lm_head) return config.head_format;
  if (config.layer_formats.empty() || id.layer < 0) return {};
  const std::optional<LayerWeight> weight = weight_of(id.role);
  if (!weight) return {};
  return config.layer_formats.at(static_cast<std::size_t>(id.layer))[*weight];
}

}  // namespace sluice
