#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/console/tables.h"
#include "engine/plan/planner.h"
#include "perfmodels/running_costs.h"

namespace sluice {

/// One asked-for point, and the plan or why there is none.
struct PlanPoint {
  std::string model;
  std::string machine;
  std::string policy;
  Workload workload;
  std::optional<Plan> plan;
  std::string problem;  ///< one line, when there is no plan
  RunningCosts running_costs = {};
};

/// All points: a table of one line each; JSON as docs/reference/plan.md says.
std::string format_plans(OutputFormat format, const std::vector<PlanPoint>& points);

/// One point as in that JSON.
nlohmann::ordered_json plan_json(const PlanPoint& point);

/// Adds `energy_j`, `mean_watts`, `joules_per_token` and `usd_per_million_tokens` of a run,
/// counting generated tokens of all sequences; null where the profile does not tell, and then
/// `running_costs_problem` says why.
void put_running_costs(const PlanPoint& point, double latency_s, const BusyTimes& busy,
                       nlohmann::ordered_json& json);
/// These in words, a line.
std::string running_costs_text(const nlohmann::ordered_json& json);

/// "1.23 s", "45.6 ms", "789 us"
std::string seconds_text(double seconds);
/// Three digits, without exponents.
std::string rate_text(double rate);

/// One plan at length: placements, seconds of each sublayer, bytes of each tier, the lower bound.
std::string describe_plan(const PlanPoint& point);

}  // namespace sluice
