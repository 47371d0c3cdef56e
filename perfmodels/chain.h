#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "perfmodels/placement.h"
#include "perfmodels/work.h"

namespace sluice {

/// Requests of one kind within a chain.
struct ChainPart {
  BatchShape shape;
  /// Where their attention runs (sublayers 2 and 3); nothing: where the placement says.
  std::optional<Device> attention = std::nullopt;
  /// Where their KV lives; nothing: where the layer's does.
  std::optional<Tier> kv = std::nullopt;
};

/// One sub-batch's chain of tasks through all layers.
struct Chain {
  std::vector<ChainPart> parts;       ///< most often one
  std::vector<Placement> placements;  ///< by layer
  /// A mini-batch: its hidden states wait in DDR while others compute on the GPU.
  bool takes_turns = false;
};

/// The chains of a whole batch under a pipeline: mini_batches equal parts.
std::vector<Chain> cut_into_mini_batches(const BatchShape& shape, std::int64_t mini_batches,
                                         const std::vector<Placement>& placements);

}  // namespace sluice
