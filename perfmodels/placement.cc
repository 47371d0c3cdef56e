#include "perfmodels/placement.h"

#include <algorithm>

namespace sluice {

ParsedPlacement Placement::parse(std::string_view text) {
  if (text.size() != 6) return ParsedPlacement(text);
  Placement placement(Device::gpu);
  for (std::size_t i = 0; i < 6; ++i) {
    if (text[i] != '0' && text[i] != '1') return ParsedPlacement(text);
    placement.devices_[i] = text[i] == '1' ? Device::cpu : Device::gpu;
  }
  return ParsedPlacement(placement);
}

bool Placement::uses(Device device) const {
  return std::find(devices_.begin(), devices_.end(), device) != devices_.end();
}

std::string Placement::to_string() const {
  std::string text;
  for (const Device device : devices_) text += device == Device::cpu ? '1' : '0';
  return text;
}

std::string_view to_string(Device device) { return device == Device::gpu ? "gpu" : "cpu"; }

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::hbm:
      return "hbm";
    case Tier::ddr:
      return "ddr";
    case Tier::cxl:
      return "cxl";
    case Tier::disk:
      return "disk";
  }
  return "?";
}

std::string_view to_string(Phase phase) { return phase == Phase::prefill ? "prefill" : "decode"; }

std::string layers_of(const TaskTag& tag) {
  const std::string first = std::to_string(tag.layer);
  if (tag.num_layers == 1) return "layer " + first;
  return "layers " + first + " to " + std::to_string(tag.layer + tag.num_layers - 1);
}

std::optional<Tier> parse_tier(std::string_view text) {
  for (const Tier tier : all_tiers) {
    if (to_string(tier) == text) return tier;
  }
  return std::nullopt;
}

bool LayerHomes::resident() const {
  return std::all_of(weights.begin(), weights.end(), [](Tier tier) { return tier == Tier::hbm; });
}

}  // namespace sluice
