#pragma once

#include <optional>
#include <string>

#include "engine/plan/cpu_plan_report.h"
#include "engine/plan/plan_report.h"
#include "engine/simulate/simulation.h"

namespace sluice {

/// One JSON object: the fields of `plan --json`, those that are times or bytes as they came out of
/// the simulation, and what only it knows (docs/reference/simulate.md). `point` has the
/// simulation's plan. `cpu_plan`: by which the CPU computed, if by one.
std::string simulation_json(const PlanPoint& point, const Simulation& simulation,
                            const std::optional<CpuPlanReport>& cpu_plan);

}  // namespace sluice
