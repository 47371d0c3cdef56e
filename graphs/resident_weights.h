#pragma once

#include <cstdint>
#include <vector>

#include "graphs/model_weights.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// Bytes that a model's weights take once they are loaded.
struct WeightSizes {
  /// `table_bytes`: embedding and positions, as stored.
  WeightSizes(const ModelConfig& config, DType dtype, std::uint64_t table_bytes);

  std::uint64_t before_layers = 0;  ///< the tables, project_in, rotary frequencies
  std::uint64_t head = 0;
  std::uint64_t before_head = 0;  ///< the final norm, project_out
  struct Layer {
    std::uint64_t vectors = 0;
    PerLayerWeight<std::uint64_t> matrices;
    std::uint64_t experts = 0;  ///< all of the layer's
    std::uint64_t expert = 0;   ///< one of them
    std::uint64_t total() const;
  };
  std::vector<Layer> layers;

  /// Of two neighbouring layers, the most.
  std::uint64_t largest_pair() const;
  /// Of what ResidentWeights will hold.
  std::uint64_t resident(const MemoryPlan& memory) const;
};

/// Weights whose home is HBM, held in an accelerator's memory for as long as it lives: StarPU
/// evicts none of them. A tensor whose parts live on several tiers (query, key, value) is not held.
class ResidentWeights {
 public:
  /// Those of `model`, which outlives it, that `memory` has in HBM.
  ResidentWeights(const ModelWeights& model, const MemoryPlan& memory);
  ResidentWeights(const ResidentWeights&) = delete;
  ResidentWeights& operator=(const ResidentWeights&) = delete;

  std::uint64_t size_bytes() const;
  /// Brings them to StarPU's memory `node`, which must have room, and waits until they are there.
  /// Throws Error when StarPU refuses.
  void hold_on(unsigned node);

 private:
  void add(const DataHandle& handle);

  std::vector<const DataHandle*> handles_;
  std::vector<NodeAccess> held_;
};

}  // namespace sluice
