#pragma once

#include <cstdint>
#include <vector>

#include "codelets/runtime/kernel_times.h"
#include "graphs/decoder_graph.h"
#include "perfmodels/cost_model.h"

namespace sluice {

/// What a run has submitted, iteration by iteration, for a cost model to say afterwards what it
/// should have taken.
class RunRecord {
 public:
  /// `shape`: the sub-batch by its means.
  void add(const SubBatch& sub_batch, const BatchShape& shape);

  /// Seconds and kernels by phase and sublayer, all layers and iterations together; attention as
  /// `attention` where 2 and 3 are on one device.
  KernelTotals predict(const CostModel& costs) const;

 private:
  struct Iteration {
    BatchShape shape;
    std::int64_t logit_rows = 0;
    std::vector<Placement> placements;  ///< by layer
  };
  std::vector<Iteration> iterations_;
};

}  // namespace sluice
