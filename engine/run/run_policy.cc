#include "engine/run/run_policy.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/plan/policy_choice.h"

namespace sluice {

RunPolicy::RunPolicy(const PolicySettings& settings) : asked_for_(settings.name.has_value()) {
  if (settings.name) policy_ = std::make_unique<LoadedPolicy>(*settings.name, settings.options);
}

LoadedPolicy& RunPolicy::settle(const CostModel& costs, const Workload& workload,
                                const TierSettings& tiers) {
  if (!asked_for_) choose(costs, workload, tiers);
  policy_->policy().set_host_tiers(tiers.host_tiers());
  return *policy_;
}

void RunPolicy::choose(const CostModel& costs, const Workload& workload,
                       const TierSettings& tiers) {
  if (!costs.has(Device::gpu)) {
    policy_ = std::make_unique<LoadedPolicy>("cpu-only", std::map<std::string, std::string>{});
    reason_ = "there is no GPU here that Sluice can use";
    return;
  }
  LoadedPolicies policies = load_known_policies(tiers.host_tiers());
  std::vector<Candidate> candidates = plan_with_each(policies, costs, workload);
  for (Candidate& candidate : candidates) {
    if (tiers.disk && candidate.plan) candidate.plan->shortage.clear();
  }
  const Candidate& chosen = fastest(candidates);
  reason_ = explain_choice(candidates, chosen);
  if (!chosen.fits()) throw Error("{}", reason_);
  for (auto& policy : policies) {
    if (policy.get() == chosen.policy) policy_ = std::move(policy);
  }
}

std::string RunPolicy::describe() const {
  return fmt::format("policy {} ({})", policy_->name(), reason_);
}

}  // namespace sluice
