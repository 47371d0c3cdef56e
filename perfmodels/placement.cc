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

std::string_view to_string(Sublayer sublayer) {
  switch (sublayer) {
    case Sublayer::embedding:
      return "embedding";
    case Sublayer::qkv:
      return "qkv";
    case Sublayer::qk:
      return "qk";
    case Sublayer::sv:
      return "sv";
    case Sublayer::out_proj:
      return "out_proj";
    case Sublayer::fc1:
      return "fc1";
    case Sublayer::fc2:
      return "fc2";
    case Sublayer::attention:
      return "attention";
    case Sublayer::lm_head:
      return "lm_head";
    case Sublayer::sampling:
      return "sampling";
    case Sublayer::kv_store:
      return "kv_store";
    case Sublayer::attention_join:
      return "attention_join";
    case Sublayer::select_rows:
      return "select_rows";
    case Sublayer::kv_move:
      return "kv_move";
    case Sublayer::logprobs:
      return "logprobs";
    case Sublayer::router:
      return "router";
    case Sublayer::shared_ffn:
      return "shared_ffn";
    case Sublayer::expert_join:
      return "expert_join";
  }
  return "?";
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

std::string_view to_string(WeightKind kind) {
  constexpr std::array<std::string_view, num_weight_kinds> names = {
      "vectors", "query", "key", "value", "out_proj", "fc1", "fc2"};
  return names[static_cast<std::size_t>(kind)];
}

std::span<const WeightKind> weights_of(Sublayer sublayer) {
  static constexpr std::array<WeightKind, 3> qkv = {WeightKind::query, WeightKind::key,
                                                    WeightKind::value};
  static constexpr std::array<WeightKind, 1> out_proj = {WeightKind::out_proj};
  static constexpr std::array<WeightKind, 1> fc1 = {WeightKind::fc1};
  static constexpr std::array<WeightKind, 1> fc2 = {WeightKind::fc2};
  switch (sublayer) {
    case Sublayer::qkv:
      return qkv;
    case Sublayer::out_proj:
      return out_proj;
    case Sublayer::fc1:
      return fc1;
    case Sublayer::fc2:
      return fc2;
    default:
      return {};
  }
}

}  // namespace sluice
