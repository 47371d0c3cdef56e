#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/console/tables.h"
#include "engine/replay/statistics.h"

namespace sluice {

/// One replay: a model on a machine under a policy, with requests that come in one way. What has no
/// meaning or is not known is nothing, and null in JSON.
struct ReplayPoint {
  std::string model;
  std::string machine;
  std::string policy;
  std::string workload;  ///< a trace's file, or "uniform:1000,100"
  std::string arrivals;  ///< "poisson:2"
  std::string cpu_plan;  ///< of a described machine's cores, a JSON object; empty without one
  std::uint64_t seed = 0;
  std::optional<double> rate_per_s;  ///< at which requests come; of a trace, its mean
  ReplayStatistics statistics;
  std::optional<double> goodput_per_s;  ///< set_goodput()
  std::int64_t one_sub_batch_iterations = 0;
  std::int64_t two_sub_batch_iterations = 0;
  std::int64_t swapped_in_tokens = 0;   ///< KV from DDR to HBM
  std::int64_t swapped_out_tokens = 0;  ///< KV from HBM to DDR
  std::int64_t preemptions = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::vector<std::pair<std::string, double>> busy_share;  ///< by device and link
  /// What the busiest device or link allows, and its name; empty where nothing tells.
  std::optional<double> lower_bound_requests_per_s;
  std::string binding_resource;
  std::optional<LittlesLaw> littles_law;
};

/// Gives each point the goodput of those that share its model, machine, policy and workload;
/// nothing where there is no SLO, or a point without a rate among them.
void set_goodput(std::vector<ReplayPoint>& points);

/// The points, ready to print; ends with a line end. docs/reference/replay.md has the fields. CSV
/// has one column a figure, named as in JSON with _ between the levels.
std::string format_replay(OutputFormat format, const std::vector<ReplayPoint>& points);

}  // namespace sluice
