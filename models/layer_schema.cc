#include "models/layer_schema.h"

#include <algorithm>

namespace sluice {

std::optional<LayerWeight> weight_of(TensorRole role) {
  using Role = TensorRole;
  switch (role) {
    case Role::q_weight:
    case Role::k_weight:
    case Role::v_weight:
      return LayerWeight::qkv;
    case Role::out_weight:
      return LayerWeight::out;
    case Role::gate_weight:
      return LayerWeight::gate;
    case Role::fc1_weight:
      return LayerWeight::fc1;
    case Role::fc2_weight:
      return LayerWeight::fc2;
    case Role::router_weight:
      return LayerWeight::router;
    case Role::shared_gate_weight:
      return LayerWeight::shared_gate;
    case Role::shared_fc1_weight:
      return LayerWeight::shared_fc1;
    case Role::shared_fc2_weight:
      return LayerWeight::shared_fc2;
    default:
      return std::nullopt;
  }
}

std::optional<LayerWeight> weight_of_bias(TensorRole role) {
  switch (role) {
    case TensorRole::gate_bias:
      return LayerWeight::gate;
    case TensorRole::fc1_bias:
      return LayerWeight::fc1;
    case TensorRole::fc2_bias:
      return LayerWeight::fc2;
    default:
      return std::nullopt;
  }
}

std::vector<LayerTensor> layer_schema(const ModelConfig& config, std::int64_t layer) {
  using Role = TensorRole;
  std::vector<LayerTensor> tensors;
  bool of_each_expert = false;
  const auto add = [&](Role role) {
    const TensorId id{role, layer, of_each_expert ? 0 : -1};
    tensors.push_back({role, expected_shape(config, id), weight_of(role), of_each_expert});
  };
  const auto add_norm = [&](Role weight, Role bias) {
    if (!config.norm_affine) return;
    add(weight);
    if (config.norm == NormKind::layer_norm) add(bias);
  };
  const auto add_linear = [&](Role role, Role bias, bool has_bias) {
    add(role);
    if (has_bias) add(bias);
  };
  add_norm(Role::attention_norm_weight, Role::attention_norm_bias);
  add_linear(Role::q_weight, Role::q_bias, config.qkv_bias);
  add_linear(Role::k_weight, Role::k_bias, config.qkv_bias);
  add_linear(Role::v_weight, Role::v_bias, config.qkv_bias);
  add_linear(Role::out_weight, Role::out_bias, config.out_bias);
  if (config.qk_norm) {
    add(Role::q_norm_weight);
    add(Role::k_norm_weight);
  }
  if (config.attention_sinks) add(Role::attention_sinks);
  add_norm(Role::ffn_norm_weight, Role::ffn_norm_bias);
  const bool has_experts = config.has_experts(layer);
  if (has_experts) {
    add(Role::router_weight);
    if (config.router_bias) add(Role::router_bias);
    if (config.router_correction) add(Role::router_correction);
  }
  if (has_experts && config.shared_ffn_size > 0) {
    if (config.gated_ffn) add(Role::shared_gate_weight);
    add(Role::shared_fc1_weight);
    add(Role::shared_fc2_weight);
  }
  of_each_expert = has_experts;
  if (config.gated_ffn) add_linear(Role::gate_weight, Role::gate_bias, config.ffn_bias);
  add_linear(Role::fc1_weight, Role::fc1_bias, config.ffn_bias);
  add_linear(Role::fc2_weight, Role::fc2_bias, config.ffn_bias);
  return tensors;
}

std::vector<TensorId> LayerMatrix::ids(std::int64_t layer, std::int64_t expert) const {
  std::vector<TensorId> ids;
  for (const LayerTensor& tensor : tensors) ids.push_back(tensor.id(layer, expert));
  return ids;
}

std::vector<LayerMatrix> layer_matrices(const ModelConfig& config, std::int64_t layer) {
  const std::vector<LayerTensor> schema = layer_schema(config, layer);
  std::vector<LayerMatrix> matrices;
  for (const LayerWeight weight : all_layer_weights) {
    LayerMatrix matrix{.weight = weight, .tensors = {}};
    for (const LayerTensor& tensor : schema) {
      if (tensor.weight != weight) continue;
      matrix.out += tensor.shape[0];
      matrix.in = tensor.shape[1];
      matrix.of_each_expert = tensor.of_each_expert;
      matrix.tensors.push_back(tensor);
    }
    if (!matrix.tensors.empty()) matrices.push_back(std::move(matrix));
  }
  return matrices;
}

}  // namespace sluice
