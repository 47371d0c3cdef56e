#pragma once

#include <string>

#include "engine/plan_report.h"
#include "engine/simulation.h"

namespace sluice {

/// What was simulated, by name.
struct SimulatedPoint {
  std::string model;
  std::string machine;
  std::string policy;
  Workload workload;
};

/// One JSON object: the fields of `plan --json`, those that are times or bytes as they came out of
/// the simulation, and what only it knows (docs/simulate.md).
std::string simulation_json(const SimulatedPoint& point, const Simulation& simulation);

}  // namespace sluice
