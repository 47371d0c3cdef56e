#pragma once

#include <functional>
#include <vector>

#include "base/cpu_plan.h"
#include "base/topology.h"

namespace sluice {

/// Seconds that a phase takes by a plan: predicted, or measured.
using PlanScore = std::function<double(const CpuPhasePlan&)>;

struct PlanSearchOptions {
  int top = 10;           ///< so many plans are given back (section 5.3: k)
  int most_groups = 512;  ///< that the model's matrices can be cut into
  /// Plans of as many groups are left out once so many in a row were no better than the best of
  /// them; 0: never.
  int patience = 0;
};

struct FoundPlan {
  CpuPhasePlan plan;  ///< with predicted_s, what the score said
  double seconds = 0;
};

struct PlanSearch {
  std::vector<FoundPlan> best;  ///< the fastest first; of equals the one with fewer groups
  std::int64_t num_trees = 0;   ///< that were looked at
  std::int64_t num_plans = 0;   ///< that were scored
};

/// Looks for plans of a phase that takes every core (prefill): all groups of Sandwich section 5.2,
/// each tree cut horizontally (5.3).
PlanSearch search_full_plans(const Topology& topology, const PlanScore& score,
                             const PlanSearchOptions& options = {});
/// The same of a phase that may leave cores out (decode): from each tree on cores are removed as
/// long as that makes it faster.
PlanSearch search_plans(const Topology& topology, const PlanScore& score,
                        const PlanSearchOptions& options = {});

}  // namespace sluice
