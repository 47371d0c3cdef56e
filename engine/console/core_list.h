#pragma once

#include <string>
#include <vector>

#include "base/cpu_plan.h"

namespace sluice {

/// "0-15,32"; of every second number "0-30 by 2"
std::string cores_text(const std::vector<int>& cores);
/// The groups of a phase: "0-3 | 4-7".
std::string groups_text(const CpuPhasePlan& plan);

}  // namespace sluice
