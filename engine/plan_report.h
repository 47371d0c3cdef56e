#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"
#include "engine/tables.h"

namespace sluice {

/// One asked-for point, and the plan or why there is none.
struct PlanPoint {
  std::string model;
  std::string machine;
  std::string policy;
  Workload workload;
  std::optional<Plan> plan;
  std::string problem;  ///< one line, when there is no plan
};

/// All points: a table of one line each; JSON as docs/plan.md says.
std::string format_plans(OutputFormat format, const std::vector<PlanPoint>& points);

/// One point as in that JSON.
nlohmann::ordered_json plan_json(const PlanPoint& point);

/// "1.23 s", "45.6 ms", "789 us"
std::string seconds_text(double seconds);
/// Three digits, without exponents.
std::string rate_text(double rate);

/// One plan at length: placements, seconds of each sublayer, bytes of each tier, the lower bound.
std::string describe_plan(const PlanPoint& point);

}  // namespace sluice
