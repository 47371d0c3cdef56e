#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "perfmodels/sublayer.h"
#include "perfmodels/task.h"

namespace sluice {

class ParsedPlacement;

/// Where each of a layer's six sublayers runs: LIA's vector p (section 5.1).
class Placement {
 public:
  /// All six on one device.
  constexpr explicit Placement(Device device) { devices_.fill(device); }
  /// Bit i - 1 of `bits` is p_i.
  static constexpr Placement from_bits(unsigned bits) {
    Placement placement(Device::gpu);
    for (std::size_t i = 0; i < 6; ++i) placement.devices_[i] = static_cast<Device>(bits >> i & 1U);
    return placement;
  }
  /// Six digits, p1 first, 1 = CPU: "011000". Nothing when `text` is anything else.
  static ParsedPlacement parse(std::string_view text);

  /// `sublayer` is one of LIA's six.
  constexpr Device operator[](Sublayer sublayer) const {
    return devices_[static_cast<std::size_t>(sublayer) - 1];
  }
  constexpr Device& operator[](Sublayer sublayer) {
    return devices_[static_cast<std::size_t>(sublayer) - 1];
  }
  constexpr unsigned bits() const {
    unsigned result = 0;
    for (std::size_t i = 0; i < 6; ++i) result |= static_cast<unsigned>(devices_[i]) << i;
    return result;
  }
  bool uses(Device device) const;
  std::string to_string() const;
  constexpr bool operator==(const Placement&) const = default;

 private:
  std::array<Device, 6> devices_;
};

/// What Placement::parse() gives. `*Placement::parse("0110")` throws std::runtime_error that quotes
/// the text, where a std::optional would be read though it is empty.
class ParsedPlacement : public std::optional<Placement> {
 public:
  explicit ParsedPlacement(Placement placement) : optional(placement) {}
  explicit ParsedPlacement(std::string_view wrong) : text_(wrong) {}

  const Placement& operator*() const {
    if (!has_value())
      throw std::runtime_error("\"" + text_ +
                               "\" is no placement: six digits are, 0 for the GPU and 1 for the "
                               "CPU, such as 011000");
    return optional::operator*();
  }
  const Placement* operator->() const { return &**this; }

 private:
  std::string text_;
};

inline constexpr std::size_t num_placements = 64;

/// "gpu", "cpu"; "hbm", "ddr", "cxl", "disk"; "prefill", "decode".
std::string_view to_string(Device device);
std::string_view to_string(Tier tier);
std::string_view to_string(Phase phase);
/// "layer 3", "layers 0 to 7": what a task of a layer is for.
std::string layers_of(const TaskTag& tag);

inline constexpr std::array<Tier, 4> all_tiers = {Tier::hbm, Tier::ddr, Tier::cxl, Tier::disk};
std::optional<Tier> parse_tier(std::string_view text);

class CountedHotExperts;  // perfmodels/hot_experts.h

/// Where one layer's data lives.
struct LayerHomes {
  std::array<Tier, num_weight_kinds> weights{};  ///< by WeightKind
  Tier kv = Tier::ddr;                           ///< of new requests' KV
  /// Of a mixture: experts that live in HBM, though fc1 and fc2 live elsewhere. Null: none.
  /// Follows from MemoryPlan::hot_experts (count_hot_experts()): policies need not fill it.
  std::shared_ptr<const CountedHotExperts> hot{};

  static LayerHomes all(Tier weights_tier, Tier kv_tier) {
    LayerHomes homes;
    homes.weights.fill(weights_tier);
    homes.kv = kv_tier;
    return homes;
  }
  Tier operator[](WeightKind kind) const { return weights[static_cast<std::size_t>(kind)]; }
  Tier& operator[](WeightKind kind) { return weights[static_cast<std::size_t>(kind)]; }
  /// All weights in HBM: a resident layer.
  bool resident() const;
  /// Hot experts are equal where they are as many and catch the same.
  bool operator==(const LayerHomes& other) const;
};

/// The memory that a device computes in.
constexpr Tier own_tier(Device device) { return device == Device::gpu ? Tier::hbm : Tier::ddr; }
/// The device that reads a tier without a transfer: the GPU its HBM, the CPU DDR and CXL. Nothing
/// for a disk.
constexpr std::optional<Device> reader_of(Tier tier) {
  if (tier == Tier::hbm) return Device::gpu;
  if (tier == Tier::disk) return std::nullopt;
  return Device::cpu;
}

}  // namespace sluice
