#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "perfmodels/placement.h"

namespace sluice {

/// Layers that run as one task at most: they share what the task system takes for one.
constexpr std::int64_t most_layers_of_task = 8;
/// Rows of such a task at most. With more the work is large beside that, and a task ends often
/// enough for transfers and other sub-batches to come in between.
constexpr std::int64_t most_rows_of_layer_run = 64;

/// The device that reads all of a layer's weights where they live, if there is one.
inline std::optional<Device> reader_of_weights(const LayerHomes& homes) {
  const std::optional<Device> device = reader_of(homes.weights.front());
  for (const Tier home : homes.weights) {
    if (reader_of(home) != device) return std::nullopt;
  }
  return device;
}

/// Where a layer runs, and the devices that read all of its weights, and its KV, where they live.
struct LayerForm {
  Placement placement;
  std::optional<Device> weights;
  std::optional<Device> kv;
  bool has_experts = false;  ///< in place of one FFN

  /// All of it runs where everything is, so that nothing has to come or go.
  bool in_place() const { return weights && kv == weights && placement == Placement(*weights); }
  bool operator==(const LayerForm&) const = default;
};

/// How many layers from `first` on are one task, at least 1: those that are in place on one device,
/// up to most_layers_of_task, in an iteration of so many rows. `form_of(layer)` is nothing for a
/// layer that has to be cut.
template <typename FormOf>
std::int64_t layers_of_task(std::int64_t first, std::int64_t num_layers, std::int64_t rows,
                            const FormOf& form_of) {
  const std::optional<LayerForm> form = form_of(first);
  if (!form || !form->in_place() || rows > most_rows_of_layer_run) return 1;
  const std::int64_t end = std::min(first + most_layers_of_task, num_layers);
  std::int64_t next = first + 1;
  while (next < end && form_of(next) == form) ++next;
  return next - first;
}

}  // namespace sluice
