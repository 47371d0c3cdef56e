#include "perfmodels/sublayer.h"

namespace sluice {
namespace {

using Part = IterationPart;

constexpr std::array of_qkv = {WeightKind::query, WeightKind::key, WeightKind::value};
constexpr std::array of_out_proj = {WeightKind::out_proj};
constexpr std::array of_fc1 = {WeightKind::fc1};
constexpr std::array of_fc2 = {WeightKind::fc2};
constexpr std::span<const WeightKind> none;

constexpr std::size_t count = static_cast<std::size_t>(last_sublayer_value) + 1;

// clang-format off
constexpr std::array<SublayerProperties, count> table = {{
    {Sublayer::embedding, "embedding", "emb", WorkKind::other, Part::before_layers, 0, none, {0.70, 0.70, 0.70}},
    {Sublayer::qkv, "qkv", "qkv", WorkKind::product, Part::attention, 2, of_qkv, {0.00, 0.45, 0.70}},
    {Sublayer::attention, "attention", "att", WorkKind::attention, Part::attention, 3, none, {0.95, 0.75, 0.20}},
    {Sublayer::qk, "qk", "qk", WorkKind::attention, Part::attention, 3, none, {0.95, 0.75, 0.20}},
    {Sublayer::sv, "sv", "sv", WorkKind::attention, Part::attention, 4, none, {0.80, 0.47, 0.65}},
    {Sublayer::kv_move, "kv_move", "kv_move", WorkKind::other, Part::attention, 1, none, {0.85, 0.45, 0.70}},
    {Sublayer::kv_store, "kv_store", "kv_store", WorkKind::storing, Part::attention, 5, none, {0.55, 0.25, 0.60}},
    {Sublayer::attention_join, "attention_join", "join", WorkKind::other, Part::attention, 5, none, {0.50, 0.50, 0.75}},
    {Sublayer::select_rows, "select_rows", "rows", WorkKind::other, Part::attention, 5, none, {0.75, 0.60, 0.45}},
    {Sublayer::out_proj, "out_proj", "out", WorkKind::product, Part::attention, 6, of_out_proj, {0.00, 0.55, 0.40}},
    {Sublayer::router, "router", "router", WorkKind::other, Part::attention, 7, none, {0.90, 0.60, 0.00}},
    {Sublayer::shared_ffn, "shared_ffn", "shared", WorkKind::other, Part::attention, 8, none, {0.60, 0.20, 0.10}},
    {Sublayer::fc1, "fc1", "fc1", WorkKind::product, Part::ffn, 9, of_fc1, {0.80, 0.33, 0.00}},
    {Sublayer::fc2, "fc2", "fc2", WorkKind::product, Part::ffn, 10, of_fc2, {0.45, 0.76, 0.93}},
    {Sublayer::expert_join, "expert_join", "join", WorkKind::other, Part::ffn, 11, none, {0.30, 0.60, 0.80}},
    {Sublayer::lm_head, "lm_head", "head", WorkKind::other, Part::behind_layers, 12, none, {0.60, 0.55, 0.05}},
    {Sublayer::sampling, "sampling", "sampling", WorkKind::other, Part::behind_layers, 13, none, {0.35, 0.35, 0.35}},
    {Sublayer::logprobs, "logprobs", "logprobs", WorkKind::other, Part::behind_layers, 14, none, {0.45, 0.55, 0.35}},
}};
// clang-format on

/// Where each one stands in the table.
constexpr std::array<std::size_t, count> positions = [] {
  std::array<std::size_t, count> found{};
  found.fill(count);
  for (std::size_t i = 0; i < count; ++i)
    found.at(static_cast<std::size_t>(table.at(i).sublayer)) = i;
  return found;
}();
static_assert(
    [] {
      for (const std::size_t position : positions) {
        if (position == count) return false;
      }
      return true;
    }(),
    "each sublayer has a line");

}  // namespace

std::span<const SublayerProperties> all_sublayers() { return table; }

const SublayerProperties& properties_of(Sublayer sublayer) {
  return table.at(positions.at(static_cast<std::size_t>(sublayer)));
}

std::string_view to_string(WeightKind kind) {
  constexpr std::array<std::string_view, num_weight_kinds> names = {
      "vectors", "query", "key", "value", "out_proj", "fc1", "fc2"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace sluice
