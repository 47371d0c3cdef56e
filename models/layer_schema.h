#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/layer_weight.h"
#include "models/config.h"
#include "models/weights.h"

namespace sluice {

/// One of the tensors that a layer has.
struct LayerTensor {
  TensorRole role;
  std::vector<std::int64_t> shape;
  /// The weight whose rows it is, below those of the tensors before it; nothing: a vector.
  std::optional<LayerWeight> weight;
  bool of_each_expert = false;  ///< each expert of the layer has one

  /// A norm, a bias or sinks of the layer: see VectorLayout.
  bool is_vector() const { return !weight && !of_each_expert; }
  /// A bias that each expert has: see ExpertLayout.
  bool is_expert_bias() const { return !weight && of_each_expert; }
  /// Of the layer, or of one of its experts.
  TensorId id(std::int64_t layer, std::int64_t expert = -1) const {
    return {role, layer, of_each_expert ? expert : -1};
  }
};

/// All tensors of a layer, in the checkpoint's order. This is the one list of them: who loads,
/// sizes, places or submits a layer's tensors goes through it.
std::vector<LayerTensor> layer_schema(const ModelConfig& config, std::int64_t layer);

/// A weight W [out, in] of a layer, and the tensors whose rows it has.
struct LayerMatrix {
  LayerWeight weight;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool of_each_expert = false;
  std::vector<LayerTensor> tensors;

  /// Of its tensors.
  std::vector<TensorId> ids(std::int64_t layer, std::int64_t expert = -1) const;
};
/// Those that the schema's tensors make, in the order of LayerWeight.
std::vector<LayerMatrix> layer_matrices(const ModelConfig& config, std::int64_t layer);

/// The weight whose outputs a bias is added to, of those that experts have.
std::optional<LayerWeight> weight_of_bias(TensorRole role);

/// The weight whose rows a tensor is; nothing for norms, biases and what belongs to no layer.
std::optional<LayerWeight> weight_of(TensorRole role);

}  // namespace sluice
