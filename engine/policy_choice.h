#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"
#include "schedulers/loader.h"

namespace sluice {

/// A policy and what it would do; or why it cannot.
struct Candidate {
  LoadedPolicy* policy = nullptr;
  std::optional<Plan> plan;
  std::string problem;  ///< one line, when there is no plan

  bool fits() const { return plan && plan->shortage.empty(); }
};
/// Asks one policy.
Candidate plan_with(LoadedPolicy& policy, const CostModel& costs, const Workload& workload);

/// All policies that come with Sluice, or that SLUICE_POLICY_PATH adds, without options.
std::vector<std::unique_ptr<LoadedPolicy>> load_known_policies();

/// The candidate of the shortest latency: of those that fit, else of those that would on a machine
/// with more host memory, else the first. Of equal ones the first. `candidates` is not empty.
const Candidate& fastest(const std::vector<Candidate>& candidates);

/// "lia is fastest, 5.19 s; cpu-only 10.3 s, gpu-only does not fit", or why none is.
std::string explain_choice(const std::vector<Candidate>& candidates, const Candidate& chosen);

/// The policy that runs when none is asked for, and why, in a few words.
struct PolicyChoice {
  std::unique_ptr<LoadedPolicy> policy;
  std::string reason;
};
/// cpu-only where there is no GPU, else the fastest that fits. Throws Error when none does.
PolicyChoice choose_policy(const CostModel& costs, const Workload& workload);

}  // namespace sluice
