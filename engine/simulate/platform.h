#pragma once

#include <string>

#include "perfmodels/cost_model.h"

namespace sluice {

/// The name under which StarPU finds the machine that write_platform() describes (STARPU_HOSTNAME).
inline constexpr const char* platform_host = "sluice";

/// Writes what StarPU's SimGrid flavour reads about a machine into `folder`/bus: one processor that
/// stands for all of the CPU, one for all of the GPU, the memories (DDR as RAM, CXL as RAM1), and
/// between each two of them a link of its own for each direction; those with the GPU share PCIe at
/// the fastest one's rate, a way each, and both ways together what two_way_slowdown() leaves. A
/// disk (DISK0), which is only read, has a link into DDR. A link's rate is that of a transfer of
/// the size of the model's largest weight by the cost model, its latency that of a single byte.
/// Tasks' times are asked of the cost model while the simulation runs. Throws Error when a file
/// cannot be written.
void write_platform(const CostModel& costs, const std::string& folder);

}  // namespace sluice
