#pragma once

#include <cstddef>
#include <cstdint>

#include "base/weight_format.h"

namespace sluice {

/// What a weight is: W [out, in] of a linear map y = x W^T, and how its values are stored. Plain
/// data: it travels in codelet arguments.
struct WeightType {
  std::int64_t in = 0;
  std::int64_t out = 0;
  WeightFormat format = {};
  bool operator==(const WeightType&) const = default;
};

/// What a decoder layer's weights are.
struct LayerWeightTypes {
  WeightType qkv = {};   ///< [qkv_size, hidden_size]
  WeightType out = {};   ///< [hidden_size, q_size]
  WeightType gate = {};  ///< [ffn_size, hidden_size], gated FFN only
  WeightType fc1 = {};   ///< [ffn_size, hidden_size]
  WeightType fc2 = {};   ///< [hidden_size, ffn_size]
};

/// A packed weight, wherever it lies: WeightPacking::size_bytes() of its type.
struct Weight {
  WeightType type = {};
  const std::byte* data = nullptr;
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace sluice
