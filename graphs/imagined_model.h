#pragma once

#include <vector>

#include "graphs/kv_cache.h"
#include "graphs/model_weights.h"
#include "perfmodels/memory_plan.h"
#include "perfmodels/work.h"

namespace sluice {

/// A model's handles without its weights: what a simulation moves.
class ImaginedModel : public ModelWeights {
 public:
  /// Weights of as many bits an element as `dimensions` has, each on its tier's node. Of a tensor
  /// whose parts live on several tiers (query, key, value), the part in HBM takes its room there,
  /// and the rest is what moves, from the slowest of its tiers. Throws Error when a node is too
  /// small.
  ImaginedModel(const ModelConfig& config, DType dtype, const ModelDimensions& dimensions,
                const MemoryPlan& memory, const TierNodes& nodes);

 private:
  struct Maker;

  std::vector<DataHandle> resident_parts_;  ///< of tensors that are not whole
};

}  // namespace sluice
