#pragma once

#include <cstdint>
#include <vector>

#include "graphs/loaded_model.h"

namespace sluice {

/// Weights whose home is HBM, held in an accelerator's memory for as long as it lives: StarPU
/// evicts none of them. A tensor whose parts live on several tiers (query, key, value) is not held.
class ResidentWeights {
 public:
  /// Those of `model` that `memory` has in HBM.
  ResidentWeights(const LoadedModel& model, const MemoryPlan& memory);
  ~ResidentWeights();
  ResidentWeights(const ResidentWeights&) = delete;
  ResidentWeights& operator=(const ResidentWeights&) = delete;

  std::uint64_t size_bytes() const;
  /// Brings them to StarPU's memory `node`, which must have room, and waits until they are there.
  /// Throws Error when StarPU refuses.
  void hold_on(unsigned node);

 private:
  void add(const DataHandle& handle);

  std::vector<starpu_data_handle_t> handles_;
  std::size_t num_held_ = 0;
  unsigned node_ = STARPU_MAIN_RAM;
};

}  // namespace sluice
