#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/work.h"

namespace sluice {

/// Where the packed weights of one expert lie, counted from its first byte, and behind them its
/// biases. A chunk is experts, one behind the other. Plain data.
struct ExpertLayout {
  WeightType gate = {};        ///< [ffn_size, hidden_size]; nothing where the FFN is not gated
  WeightType fc1 = {};         ///< [ffn_size, hidden_size]
  WeightType fc2 = {};         ///< [hidden_size, ffn_size]
  std::size_t gate_bytes = 0;  ///< with what fills them up to whole cache lines; its offset is 0
  std::size_t fc1_bytes = 0;
  std::size_t fc2_bytes = 0;
  std::size_t gate_bias_bytes = 0;  ///< f32 [out of its weight], filled up too; 0: there is none
  std::size_t fc1_bias_bytes = 0;
  std::size_t fc2_bias_bytes = 0;

  /// Of a layer's weights gate, fc1 and fc2, as each expert has them.
  static ExpertLayout of(const LayerWeightTypes& types, const MixtureShape& mixture);

  std::size_t offset(LayerWeight weight) const {
    if (weight == LayerWeight::gate) return 0;
    return weight == LayerWeight::fc1 ? gate_bytes : gate_bytes + fc1_bytes;
  }
  /// The bias that belongs to one of these weights.
  std::size_t bias_offset(LayerWeight weight) const {
    const std::size_t first = gate_bytes + fc1_bytes + fc2_bytes;
    if (weight == LayerWeight::gate) return first;
    return first + gate_bias_bytes + (weight == LayerWeight::fc1 ? 0 : fc1_bias_bytes);
  }
  bool has_biases() const { return fc2_bias_bytes > 0; }
  /// Of the expert that begins there; null where there is none.
  const float* bias(const std::byte* expert, LayerWeight weight) const {
    return has_biases() ? reinterpret_cast<const float*>(expert + bias_offset(weight)) : nullptr;
  }
  /// Of one expert.
  std::size_t size_bytes() const {
    return gate_bytes + fc1_bytes + fc2_bytes + gate_bias_bytes + fc1_bias_bytes + fc2_bias_bytes;
  }
  bool operator==(const ExpertLayout&) const = default;
};

/// How a layer's experts are cut into chunks of neighbouring ones, each of which is one piece of
/// data, with one home. Each expert has a place: its number, or, where some are hot, those first;
/// see ExpertOrder. Chunks of hot experts come first. Plain data.
struct ExpertChunks {
  std::int32_t num_experts = 0;
  std::int32_t per_chunk = 0;      ///< the last chunk may have fewer
  std::int32_t num_hot = 0;        ///< that stay in HBM and run there
  std::int32_t per_hot_chunk = 0;  ///< of these, in the same way

  /// Chunks of at most this size, but of one expert at least.
  static ExpertChunks cut(std::int64_t num_experts, std::size_t expert_bytes,
                          std::size_t most_of_chunk = most_chunk_bytes, std::int64_t num_hot = 0);

  std::int32_t num_hot_chunks() const {
    return num_hot == 0 ? 0 : (num_hot + per_hot_chunk - 1) / per_hot_chunk;
  }
  std::int32_t count() const {
    const std::int32_t others = num_experts - num_hot;
    return num_hot_chunks() + (others == 0 ? 0 : (others + per_chunk - 1) / per_chunk);
  }
  /// The place of its first expert.
  std::int32_t first_of(std::int32_t chunk) const {
    return is_hot(chunk) ? chunk * per_hot_chunk : num_hot + (chunk - num_hot_chunks()) * per_chunk;
  }
  std::int32_t size_of(std::int32_t chunk) const {
    return is_hot(chunk) ? std::min(per_hot_chunk, num_hot - first_of(chunk))
                         : std::min(per_chunk, num_experts - first_of(chunk));
  }
  std::int32_t chunk_of(std::int32_t place) const {
    return place < num_hot ? place / per_hot_chunk
                           : num_hot_chunks() + (place - num_hot) / per_chunk;
  }
  bool is_hot(std::int32_t chunk) const { return chunk < num_hot_chunks(); }
  /// Some experts are hot and some are not, so that a row has two sums.
  bool has_two_sums() const { return num_hot > 0 && num_hot < num_experts; }
  bool operator==(const ExpertChunks&) const = default;
};

/// The places of a layer's experts: hot ones by number, then the others by number.
struct ExpertOrder {
  std::vector<std::int32_t> experts;  ///< by place
  std::vector<std::int32_t> places;   ///< by expert

  /// `hot` names different experts of `num_experts`.
  ExpertOrder(std::int32_t num_experts, std::span<const std::int32_t> hot);
};

/// A task has at most so many.
inline constexpr std::int32_t most_chunks = 256;

}  // namespace sluice
