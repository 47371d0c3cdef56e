#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

/// The weights of a decoder layer that are packed as a matrix each, in the order in which they are
/// loaded, and in which tasks name them.
enum class LayerWeight : std::uint8_t {
  qkv,     ///< query, key and value, one below the other
  out,     ///< of attention's output
  gate,    ///< of a gated FFN only
  fc1,     ///< the "up" projection of a gated FFN
  fc2,     ///< the "down" projection of a gated FFN
  router,  ///< of a mixture of experts, whose gate, fc1 and fc2 are one of each for every expert
  shared_gate,  ///< of the FFN that all rows go through beside their experts, likewise
  shared_fc1,
  shared_fc2,
};
inline constexpr std::array<LayerWeight, 9> all_layer_weights = {
    LayerWeight::qkv,         LayerWeight::out,        LayerWeight::gate,
    LayerWeight::fc1,         LayerWeight::fc2,        LayerWeight::router,
    LayerWeight::shared_gate, LayerWeight::shared_fc1, LayerWeight::shared_fc2};
/// Those that each expert of a mixture has.
constexpr bool is_of_ffn(LayerWeight weight) {
  return weight == LayerWeight::gate || weight == LayerWeight::fc1 || weight == LayerWeight::fc2;
}

/// Those of the FFN that all rows of a mixture go through.
constexpr bool is_shared(LayerWeight weight) { return weight >= LayerWeight::shared_gate; }

/// Something of each of a layer's weights. Plain data if T is.
template <typename T>
struct PerLayerWeight {
  std::array<T, all_layer_weights.size()> values{};  ///< by LayerWeight

  T& operator[](LayerWeight weight) { return values[static_cast<std::size_t>(weight)]; }
  const T& operator[](LayerWeight weight) const { return values[static_cast<std::size_t>(weight)]; }
  auto begin() { return values.begin(); }
  auto end() { return values.end(); }
  auto begin() const { return values.begin(); }
  auto end() const { return values.end(); }
  bool operator==(const PerLayerWeight&) const = default;
};

}  // namespace sluice
