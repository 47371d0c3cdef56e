#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/layer_weight.h"
#include "models/config.h"
#include "models/weights.h"

namespace sluice {

/// One of the tensors that every layer has.
struct LayerTensor {
  TensorRole role;
  std::vector<std::int64_t> shape;
  /// The weight whose rows it is, below those of the tensors before it; nothing: a vector.
  std::optional<LayerWeight> weight;
};

/// All tensors of a layer, in the checkpoint's order. This is the one list of them: who loads,
/// sizes, places or submits a layer's tensors goes through it.
std::vector<LayerTensor> layer_schema(const ModelConfig& config);

/// A weight W [out, in] of a layer, and the tensors whose rows it has.
struct LayerMatrix {
  LayerWeight weight;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::vector<LayerTensor> tensors;
};
/// Those that the schema's tensors make, in the order of LayerWeight.
std::vector<LayerMatrix> layer_matrices(const ModelConfig& config);

}  // namespace sluice
