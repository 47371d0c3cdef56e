#pragma once

#include <string>

#include "perfmodels/cost_model.h"

namespace sluice {

/// The name under which StarPU finds the machine that write_platform() describes (STARPU_HOSTNAME).
inline constexpr const char* platform_host = "sluice";

/// Writes what StarPU's SimGrid flavour reads about a machine into `folder`/bus:
///
///   CPU -- RAM (DDR), RAM1 (CXL)    a link for each pair of memories and direction
///   GPU -- its memory               links with it share PCIe, a way each, at the fastest's rate
///   DISK0 --> RAM                   both ways together: what two_way_slowdown() leaves
///
/// A link's rate is that of the model's largest weight by the cost model, its latency that of a
/// byte. Throws Error when a file cannot be written.
void write_platform(const CostModel& costs, const std::string& folder);

}  // namespace sluice
