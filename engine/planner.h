#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perfmodels/footprint.h"
#include "perfmodels/layer_cost.h"
#include "perfmodels/timeline.h"
#include "schedulers/checked_policy.h"

namespace sluice {

/// Layers that are treated alike in one phase.
struct LayerGroup {
  std::int64_t num_layers = 0;
  LayerHomes homes;
  LayerCost cost;  ///< of one layer and, where the batch is cut, of one mini-batch
};

/// What a policy does in one phase, and how long an iteration of it takes.
struct PhasePlan {
  BatchShape shape;
  Pipeline pipeline;
  std::vector<LayerGroup> groups;  ///< most layers first
  std::int64_t iterations = 1;
  IterationEstimate iteration;

  double seconds() const { return iteration.seconds * static_cast<double>(iterations); }
  /// Of the layers that are not resident, or of all where all are.
  const LayerGroup& main_group() const;
};

/// A policy's answers for one workload on one machine, and what the cost model makes of them.
struct Plan {
  Workload workload;
  MemoryPlan memory;
  Footprint footprint;
  /// Empty, or which of the host's tiers is too small, in words: then the estimate is for a machine
  /// with more of it.
  std::string shortage;
  PhasePlan prefill;
  PhasePlan decode;

  double ttft_s() const { return prefill.seconds(); }
  double tpot_s() const { return decode.iteration.seconds; }
  double latency_s() const { return prefill.seconds() + decode.seconds(); }
  double tokens_per_s() const {
    return static_cast<double>(workload.batch * workload.output_tokens) / latency_s();
  }
  /// What the busiest part of the machine alone takes for this work, placed like this, with its
  /// name.
  std::pair<std::string_view, double> lower_bound() const;
};

/// Asks `policy` and estimates. Prefill is one iteration, decode output_tokens - 1 of them, each
/// taken to last as long as the one in the middle. Throws Error when the plan does not fit HBM,
/// with the numbers, or uses what the machine does not have.
Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload);

}  // namespace sluice
