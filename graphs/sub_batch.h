#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codelets/runtime/batch.h"
#include "perfmodels/placement.h"
#include "perfmodels/task.h"

namespace sluice {

/// Sequences of a sub-batch whose KV is of one cohort, and which attend on the same devices.
struct BatchPart {
  std::size_t cohort = 0;       ///< index among the graph's KV caches
  Phase phase = Phase::decode;  ///< prefill as soon as any sequence brings more than one token
  BatchBuilder batch;
  std::vector<Placement> placements;  ///< of each layer; empty: all on the CPU
};

/// What one chain of tasks computes in an iteration. All rows pass through sublayers 1 and 4 to 6
/// together, where the first part's placements say; each part attends where its own say.
struct SubBatch {
  std::vector<BatchPart> parts;  ///< at most max_batch_parts

  /// Makes one part of neighbours that need not be two: one cohort, and everywhere the same
  /// placement.
  void join_alike();
  /// All parts as one, placed as the first.
  BatchPart whole() const;
};

/// Pages of KV that leave one cohort's slabs for another's, in every layer, before an iteration
/// attends to them. Neither cohort lives on a disk.
struct KvMove {
  std::size_t from = 0;  ///< cohorts, different ones
  std::size_t to = 0;
  std::vector<std::int32_t> from_pages;
  std::vector<std::int32_t> to_pages;  ///< as many
};

}  // namespace sluice
