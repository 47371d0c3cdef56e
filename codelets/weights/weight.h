#pragma once

#include <cstddef>
#include <cstdint>

#include "base/layer_weight.h"
#include "base/weight_format.h"
#include "perfmodels/task.h"

namespace sluice {

/// What a weight is: W [out, in] of a linear map y = x W^T, and how its values are stored. Plain
/// data: it travels in codelet arguments.
struct WeightType {
  std::int64_t in = 0;
  std::int64_t out = 0;
  WeightFormat format = {};
  bool operator==(const WeightType&) const = default;
};

/// What a decoder layer's weights are: of qkv [qkv_size, hidden_size], of out [hidden_size,
/// q_size], of gate and fc1 [ffn_size, hidden_size], of fc2 [hidden_size, ffn_size]; those of a
/// shared FFN likewise.
using LayerWeightTypes = PerLayerWeight<WeightType>;

/// The one that multiplies with it.
constexpr Sublayer sublayer_of(LayerWeight weight) {
  switch (weight) {
    case LayerWeight::qkv:
      return Sublayer::qkv;
    case LayerWeight::out:
      return Sublayer::out_proj;
    case LayerWeight::router:
      return Sublayer::router;
    case LayerWeight::shared_gate:
    case LayerWeight::shared_fc1:
    case LayerWeight::shared_fc2:
      return Sublayer::shared_ffn;
    case LayerWeight::gate:
    case LayerWeight::fc1:
      return Sublayer::fc1;
    default:
      return Sublayer::fc2;
  }
}

/// A packed weight, wherever it lies: WeightPacking::size_bytes() of its type.
struct Weight {
  WeightType type = {};
  const std::byte* data = nullptr;
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace sluice
