#pragma once

#include "codelets/runtime/simulated.h"
#include "graphs/kv_cache.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/timeline.h"

namespace sluice {

/// StarPU's memory nodes of the simulated machine.
TierNodes tier_nodes(const SimulatedRuntime& machine);

/// What the links have moved since they were last asked.
struct LinkTraffic {
  double to_gpu_bytes = 0;
  double to_cpu_bytes = 0;
  double disk_bytes = 0;  ///< read
  BusyTimes busy;         ///< of the links alone: one after the other, at the link's rate
};
LinkTraffic take_link_traffic(const CostModel& costs, const SimulatedRuntime& machine);

}  // namespace sluice
