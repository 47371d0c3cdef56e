#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "perfmodels/task.h"

namespace sluice {

/// A layer's weights, as they are placed: each lives on one tier as a whole. `fc1` includes the
/// gate of a gated FFN, `vectors` are norms and biases. The engine keeps query, key and value as
/// one tensor, which lives on the slowest of their tiers.
enum class WeightKind : std::uint8_t { vectors, query, key, value, out_proj, fc1, fc2 };
inline constexpr std::size_t num_weight_kinds = 7;
std::string_view to_string(WeightKind kind);

/// What a cost model computes a sublayer's time from.
enum class WorkKind : std::uint8_t {
  product,    ///< rows times a weight; of a mixture's FFN its experts'
  attention,  ///< rows against the KV that they see
  storing,    ///< bytes of KV that are copied
  other,      ///< nothing: a task's overhead is all that is counted, or lm_head_s()
};

/// Where an iteration has a sublayer: behind a layer's attention half (sublayers 1 to 4) comes its
/// FFN half (5 and 6).
enum class IterationPart : std::uint8_t { before_layers, attention, ffn, behind_layers };

/// All that is known of a sublayer, but for what its kernels compute.
struct SublayerProperties {
  Sublayer sublayer;
  std::string_view name;
  std::string_view short_name;  ///< where a picture has little room
  WorkKind work;
  IterationPart part;
  /// What comes first in an iteration has a lower one; equal ones come side by side.
  std::int8_t place;
  /// Those that one of LIA's six multiplies with.
  std::span<const WeightKind> weights;
  std::array<double, 3> colour;  ///< red, green and blue, 0 to 1, in pictures and traces
};

/// The one list of sublayers, in the order in which tables show them.
std::span<const SublayerProperties> all_sublayers();
const SublayerProperties& properties_of(Sublayer sublayer);

inline constexpr std::array<Sublayer, 6> layer_sublayers = {
    Sublayer::qkv, Sublayer::qk, Sublayer::sv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2};

/// "qkv", "qk", "sv", "out_proj", "fc1", "fc2", ...
inline std::string_view to_string(Sublayer sublayer) { return properties_of(sublayer).name; }
/// The weights that one of LIA's six sublayers multiplies with; none for 2 and 3.
inline std::span<const WeightKind> weights_of(Sublayer sublayer) {
  return properties_of(sublayer).weights;
}

}  // namespace sluice
