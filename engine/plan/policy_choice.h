#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/planner.h"
#include "schedulers/loader.h"

namespace sluice {

/// A policy and what it would do; or why it cannot.
struct Candidate {
  LoadedPolicy* policy = nullptr;
  Workload workload;
  std::optional<Plan> plan;
  std::string problem;  ///< one line, when there is no plan

  bool fits() const { return plan && plan->shortage.empty(); }
};
/// A workload's batch: the largest that fits as a policy places it.
inline constexpr std::int64_t as_many_as_fit = 0;

/// Asks one policy. Of as_many_as_fit the workload becomes what fits, or one sequence if none does.
Candidate plan_with(LoadedPolicy& policy, const CostModel& costs, const Workload& workload);

using LoadedPolicies = std::vector<std::unique_ptr<LoadedPolicy>>;

/// All policies that come with Sluice, or that SLUICE_POLICY_PATH adds, but for baselines; without
/// options, with host memory as `tiers` have it; what cannot be loaded is left out, with a line in
/// the log. Throws Error when there is none.
LoadedPolicies load_known_policies(const HostTiers& tiers);

/// plan_with() of each.
std::vector<Candidate> plan_with_each(const LoadedPolicies& policies, const CostModel& costs,
                                      const Workload& workload);

/// The candidate of the shortest latency, of different batches by sequence: of those that fit, else
/// of those that would on a machine with more host memory, else the first. Of equal ones
/// the one that uses no GPU, which runs take where there is none, else the first. `candidates` is
/// not empty.
const Candidate& fastest(const std::vector<Candidate>& candidates);

/// "lia is fastest, 5.19 s; cpu-only 10.3 s, gpu-only does not fit", or why none is.
std::string explain_choice(const std::vector<Candidate>& candidates, const Candidate& chosen);

}  // namespace sluice
