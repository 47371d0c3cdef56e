#pragma once

#include "schedulers/policy.h"

namespace sluice {

/// The tier of weights that do not live in HBM, for policies that know one host memory only: DDR if
/// all weights fit there, else CXL memory.
inline Tier host_tier(const CostModel& costs) {
  const ModelDimensions& model = costs.model();
  const double weights = layer_weight_bytes(model) * static_cast<double>(model.num_layers);
  const bool fits = weights <= static_cast<double>(costs.capacity_bytes(Tier::ddr));
  return fits || costs.capacity_bytes(Tier::cxl) == 0 ? Tier::ddr : Tier::cxl;
}

}  // namespace sluice
