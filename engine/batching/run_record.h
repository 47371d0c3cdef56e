#pragma once

#include <cstdint>
#include <vector>

#include "codelets/runtime/kernel_times.h"
#include "graphs/decoder_graph.h"
#include "perfmodels/cost_model.h"

namespace sluice {

/// A part of a batch by its means, rounded up.
BatchShape shape_of(const BatchPart& part);

/// What a run has submitted, iteration by iteration, for a cost model to say afterwards what it
/// should have taken.
class RunRecord {
 public:
  void add(const SubBatch& sub_batch);

  /// Seconds and kernels of one device by phase and sublayer, all layers and iterations together;
  /// attention as `attention` where 2 and 3 are on one device. `head_device` runs the LM head.
  KernelTotals predict(const CostModel& costs, Device device, Device head_device) const;

 private:
  struct Part {
    BatchShape shape;
    std::vector<Placement> placements;  ///< by layer
  };
  struct Iteration {
    Part all;  ///< sublayers 1 and 4 to 6
    std::int64_t logit_rows = 0;
    std::vector<Part> parts;  ///< sublayers 2 and 3
  };
  std::vector<Iteration> iterations_;
};

}  // namespace sluice
