#include "engine/plan/policy_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "schedulers/refusals.h"

namespace sluice {
namespace {

/// What there is to choose from, the best first: plans that fit, plans that need more memory than
/// the machine has, none.
int rank(const Candidate& candidate) {
  if (!candidate.plan) return 2;
  return candidate.fits() ? 0 : 1;
}

double seconds_per_sequence(const Plan& plan) {
  return plan.latency_s() / static_cast<double>(plan.workload.batch);
}

/// How fast it is, in what compares these candidates.
std::string speed_text(const Plan& plan, bool same_batch) {
  if (same_batch) return fmt::format("{:.3g} s", plan.latency_s());
  return fmt::format("{:.3g} tokens/s with {} sequences", plan.tokens_per_s(), plan.workload.batch);
}

/// Whose figures are for another scheduler than they run on.
std::string scheduler_note(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) {
    if (candidate.plan && candidate.policy->has_own_scheduler())
      names.push_back(candidate.policy->name());
  }
  if (names.empty()) return "";
  return fmt::format("; {} with the shared scheduler, not with a scheduler of its own",
                     fmt::join(names, ", "));
}

}  // namespace

Candidate plan_with(LoadedPolicy& policy, const CostModel& costs, const Workload& workload) {
  Candidate candidate = {
      .policy = &policy, .workload = workload, .plan = std::nullopt, .problem = ""};
  if (workload.batch == as_many_as_fit) {
    candidate.workload.batch = std::max<std::int64_t>(
        1, largest_fitting_batch(policy.policy(), costs, candidate.workload));
  }
  try {
    candidate.plan = make_plan(policy.policy(), costs, candidate.workload);
  } catch (const Error& error) {
    candidate.problem = error.what();
  }
  return candidate;
}

LoadedPolicies load_known_policies(const HostTiers& tiers) {
  LoadedPolicies policies;
  for (const std::string& name : find_policies(policy_folders())) {
    try {
      policies.push_back(
          std::make_unique<LoadedPolicy>(name, std::map<std::string, std::string>{}));
      if (policies.back()->is_baseline()) {
        policies.pop_back();
        continue;
      }
      policies.back()->policy().set_host_tiers(tiers);
    } catch (const Error& error) {
      if (is_first_time(error.what()))
        logger().warn("a policy that was not asked for is left out: {}", error.what());
    }
  }
  if (policies.empty())
    throw Error("no policy was found beside the program; give one with --policy FILE");
  return policies;
}

std::vector<Candidate> plan_with_each(const LoadedPolicies& policies, const CostModel& costs,
                                      const Workload& workload) {
  std::vector<Candidate> candidates;
  candidates.reserve(policies.size());
  for (const auto& policy : policies) candidates.push_back(plan_with(*policy, costs, workload));
  return candidates;
}

const Candidate& fastest(const std::vector<Candidate>& candidates) {
  return *std::min_element(
      candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        if (rank(a) != rank(b) || !a.plan) return rank(a) < rank(b);
        // Without a GPU all run alike.
        return std::pair(seconds_per_sequence(*a.plan), a.plan->memory.uses_gpu) <
               std::pair(seconds_per_sequence(*b.plan), b.plan->memory.uses_gpu);
      });
}

std::string explain_choice(const std::vector<Candidate>& candidates, const Candidate& chosen) {
  if (!chosen.plan) return fmt::format("no policy's plan fits: {}", chosen.problem);
  const bool same_batch =
      std::all_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
        return candidate.workload.batch == chosen.workload.batch;
      });
  std::vector<std::string> others;
  for (const Candidate& candidate : candidates) {
    if (&candidate == &chosen || candidate.problem.find(no_experts) != std::string::npos) continue;
    const std::string& name = candidate.policy->name();
    others.push_back(candidate.fits()
                         ? fmt::format("{} {}", name, speed_text(*candidate.plan, same_batch))
                         : fmt::format("{} does not fit", name));
  }
  const std::string& name = chosen.policy->name();
  const std::string speed = speed_text(*chosen.plan, same_batch);
  if (!chosen.fits())
    return fmt::format("no policy's plan fits; with more memory {} would be fastest, {}", name,
                       speed);
  return fmt::format("{} is fastest, {}; {}{}", name, speed, fmt::join(others, ", "),
                     scheduler_note(candidates));
}

}  // namespace sluice
