#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/topology.h"
#include "perfmodels/cpu_plan_cost.h"

namespace sluice {

/// Measures how fast this machine's cores read memory and meet each other, in some seconds, before
/// StarPU starts: the cores of the NUMA node that has the most, by how many of them read, and what
/// they read of another node's. Who reads `working_set_bytes` over and over is judged by the
/// caches, too. Throws Error where memory is too small.
CoreRates measure_core_rates(const Topology& topology, DType dtype,
                             std::uint64_t working_set_bytes);

}  // namespace sluice
