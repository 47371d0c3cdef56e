#include "models/layer_schema.h"

#include <algorithm>

namespace sluice {

std::vector<LayerTensor> layer_schema(const ModelConfig& config) {
  using Role = TensorRole;
  std::vector<LayerTensor> tensors;
  const auto add = [&](Role role, std::optional<LayerWeight> weight = {}) {
    tensors.push_back({role, expected_shape(config, role), weight});
  };
  const auto add_norm = [&](Role weight, Role bias) {
    if (!config.norm_affine) return;
    add(weight);
    if (config.norm == NormKind::layer_norm) add(bias);
  };
  const auto add_linear = [&](Role role, LayerWeight weight, Role bias, bool has_bias) {
    add(role, weight);
    if (has_bias) add(bias);
  };
  add_norm(Role::attention_norm_weight, Role::attention_norm_bias);
  add_linear(Role::q_weight, LayerWeight::qkv, Role::q_bias, config.qkv_bias);
  add_linear(Role::k_weight, LayerWeight::qkv, Role::k_bias, config.qkv_bias);
  add_linear(Role::v_weight, LayerWeight::qkv, Role::v_bias, config.qkv_bias);
  add_linear(Role::out_weight, LayerWeight::out, Role::out_bias, config.out_bias);
  if (config.qk_norm) {
    add(Role::q_norm_weight);
    add(Role::k_norm_weight);
  }
  if (config.attention_sinks) add(Role::attention_sinks);
  add_norm(Role::ffn_norm_weight, Role::ffn_norm_bias);
  if (config.gated_ffn)
    add_linear(Role::gate_weight, LayerWeight::gate, Role::gate_bias, config.ffn_bias);
  add_linear(Role::fc1_weight, LayerWeight::fc1, Role::fc1_bias, config.ffn_bias);
  add_linear(Role::fc2_weight, LayerWeight::fc2, Role::fc2_bias, config.ffn_bias);
  return tensors;
}

std::vector<LayerMatrix> layer_matrices(const ModelConfig& config) {
  const std::vector<LayerTensor> schema = layer_schema(config);
  std::vector<LayerMatrix> matrices;
  for (const LayerWeight weight : all_layer_weights) {
    LayerMatrix matrix{.weight = weight, .tensors = {}};
    for (const LayerTensor& tensor : schema) {
      if (tensor.weight != weight) continue;
      matrix.out += tensor.shape[0];
      matrix.in = tensor.shape[1];
      matrix.tensors.push_back(tensor);
    }
    if (!matrix.tensors.empty()) matrices.push_back(std::move(matrix));
  }
  return matrices;
}

}  // namespace sluice
