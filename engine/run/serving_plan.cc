#include "engine/run/serving_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "engine/plan/policy_choice.h"
#include "engine/run/iteration_memory.h"

namespace sluice {
namespace {

const char* const smaller = "a smaller --max-model-len needs less";

std::vector<IterationSize> iterations_of(const ServingLimits& limits) {
  return {{.phase = Phase::prefill, .sequences = 1, .rows = limits.max_batch_tokens},
          {.phase = Phase::decode, .sequences = limits.max_sequences}};
}

/// What a policy plans for, and the pools that it gets.
struct Pools {
  Workload workload;
  KvPages kv;

  /// That are not in HBM, if the policy keeps none there.
  std::int64_t host_pages() const { return kv.ddr.value_or(kv.all); }
};

/// Requests that share so many tokens evenly, each in whole pages.
Workload shared_by(const ServingLimits& limits, std::int64_t tokens) {
  const std::int64_t pages = KvCache::pages_for(tokens);
  const std::int64_t requests = std::min(limits.max_sequences, pages);
  const std::int64_t each = (pages + requests - 1) / requests * page_tokens;
  const std::int64_t rows = (limits.max_batch_tokens + requests - 1) / requests;
  const std::int64_t input = std::min(rows, each - 1);
  return {.batch = requests, .input_tokens = input, .output_tokens = each - input};
}

/// For `max_sequences` requests, so many pages each.
Pools pools_of(const ServingLimits& limits, std::int64_t pages_each) {
  const std::int64_t tokens = pages_each * page_tokens;
  const std::int64_t input = std::min(tokens - 1, limits.max_batch_tokens);
  return {.workload = {.batch = limits.max_sequences,
                       .input_tokens = input,
                       .output_tokens = tokens - input},
          .kv = {.all = pages_each * limits.max_sequences}};
}

std::optional<std::int64_t> pages_of(const std::optional<std::int64_t>& tokens) {
  if (!tokens) return std::nullopt;
  return KvCache::pages_for(*tokens);
}

/// Pools of given sizes; what is not given comes from `others`, which are evenly shared.
KvPages fixed_pools(const KvTokens& tokens, const KvPages& others) {
  return {.all = others.all, .hbm = pages_of(tokens.hbm), .ddr = pages_of(tokens.ddr)};
}

bool is_in(Tier tier, const KvCohort& cohort) {
  return std::ranges::find(cohort.homes, tier) != cohort.homes.end();
}

bool has_kv_in_hbm(const PolicyRun& policy) {
  return std::ranges::any_of(policy.kv_cohorts(),
                             [](const KvCohort& cohort) { return is_in(Tier::hbm, cohort); });
}

/// A request at its longest fits one of the pools.
void check_longest(const ServingLimits& limits, const PolicyRun& policy) {
  std::int64_t most = 0;
  for (const KvCohort& cohort : policy.kv_cohorts()) most = std::max(most, cohort.pages);
  if (most >= KvCache::pages_for(limits.max_model_len)) return;
  throw Error("--kv-tokens {}: one request may take {} tokens (--max-model-len), and {} gets {}",
              to_string(limits.kv_tokens), limits.max_model_len, policy.name(), most * page_tokens);
}

HostNeed need_of(const ServingDemand& demand, const Pools& pools) {
  const ModelConfig& config = demand.model.config;
  HostNeed need = iteration_need(config, iterations_of(demand.limits), demand.limits.max_model_len,
                                 {.dtype = demand.dtype,
                                  .fusion = demand.fusion,
                                  .attention = AttentionForm::fused,
                                  .accelerated = static_cast<bool>(demand.accelerator)});
  need.kv_bytes = KvCache::size_bytes(decoder_shape(config, demand.dtype), config.num_layers,
                                      pools.host_pages());
  need.table_bytes = table_bytes(demand.model);
  return need;
}

HostPlan host_plan(const ServingDemand& demand, const Pools& pools) {
  return {demand.model.config, demand.dtype, need_of(demand, pools), demand.tiers};
}

RunDemand run_demand(const ServingDemand& demand, const Pools& pools) {
  return {.model = demand.model,
          .dtype = demand.dtype,
          .cpu = demand.cpu,
          .tiers = demand.tiers,
          .accelerator = demand.accelerator,
          .workload = pools.workload,
          .need = need_of(demand, pools),
          .iterations = iterations_of(demand.limits),
          .kv = pools.kv,
          .one_cohort = false,
          .timed = false,
          .smaller = smaller};
}

RunPlan plan_pools(const ServingDemand& demand, RunPolicy& policy, const Pools& pools) {
  const HostPlan host = host_plan(demand, pools);
  if (host.missing_bytes() > 0 && !(demand.accelerator && demand.tiers.disk))
    throw Error("{}", shortage_text(host, demand.tiers, smaller));
  return plan_run(run_demand(demand, pools), host, policy);
}

/// The most pages for each sequence of [least, most] with which the host has room; `least` when
/// there are none.
std::int64_t most_that_fit(const ServingDemand& demand, std::int64_t least, std::int64_t most) {
  std::int64_t too_many = most + 1;
  while (too_many - least > 1) {
    const std::int64_t middle = (least + too_many) / 2;
    const bool fits = host_plan(demand, pools_of(demand.limits, middle)).missing_bytes() == 0;
    (fits ? least : too_many) = middle;
  }
  return least;
}

/// For each of `max_sequences` requests.
std::int64_t share_of(const ServingLimits& limits, std::int64_t pages) {
  return (pages + limits.max_sequences - 1) / limits.max_sequences;
}
std::int64_t least_pages(const ServingLimits& limits) {
  return share_of(limits, KvCache::pages_for(limits.max_model_len));
}

RunPlan plan_fixed_pools(const ServingDemand& demand, RunPolicy& policy) {
  const ServingLimits& limits = demand.limits;
  const std::int64_t each =
      most_that_fit(demand, least_pages(limits), KvCache::pages_for(limits.max_model_len));
  Pools pools = pools_of(limits, each);
  pools.kv = fixed_pools(limits.kv_tokens, pools.kv);
  const auto with_workload_of = [&](std::int64_t tokens) {
    pools.workload = shared_by(limits, tokens);
  };
  if (limits.kv_tokens.hbm) {
    with_workload_of(*limits.kv_tokens.hbm);
    const RunPlan asked = plan_pools(demand, policy, pools);
    if (!has_kv_in_hbm(asked.policy_run())) with_workload_of(pools.host_pages() * page_tokens);
  } else {
    with_workload_of(*limits.kv_tokens.ddr);
  }
  {
    const RunPlan checked = plan_pools(demand, policy, pools);
    check_longest(limits, checked.policy_run());
  }
  return plan_pools(demand, policy, pools);
}

}  // namespace

std::string to_string(const KvTokens& tokens) {
  if (tokens.all) return fmt::format("{}", *tokens.all);
  std::string text;
  if (tokens.hbm) text = fmt::format("hbm={}", *tokens.hbm);
  if (tokens.ddr) text += fmt::format("{}ddr={}", text.empty() ? "" : ",", *tokens.ddr);
  return text;
}

std::string unused_pool(const KvTokens& tokens, const PolicyRun& policy) {
  const bool in_hbm = has_kv_in_hbm(policy);
  const bool elsewhere = std::ranges::any_of(policy.kv_cohorts(), [](const KvCohort& cohort) {
    return std::ranges::count(cohort.homes, Tier::hbm) < std::ssize(cohort.homes);
  });
  if (tokens.hbm && !in_hbm)
    return fmt::format("policy {} keeps no KV in HBM: hbm={} of --kv-tokens is not used",
                       policy.name(), *tokens.hbm);
  if (tokens.ddr && !elsewhere)
    return fmt::format("policy {} keeps all KV in HBM: ddr={} of --kv-tokens is not used",
                       policy.name(), *tokens.ddr);
  return "";
}

RunPlan plan_serving(const ServingDemand& demand, RunPolicy& policy) {
  const ServingLimits& limits = demand.limits;
  if (limits.kv_tokens.by_tier()) return plan_fixed_pools(demand, policy);
  const std::int64_t of_longest = KvCache::pages_for(limits.max_model_len);
  const std::int64_t least = least_pages(limits);
  std::int64_t pages_each = least;
  if (limits.kv_tokens.all) {
    pages_each = share_of(limits, KvCache::pages_for(*limits.kv_tokens.all));
    if (*limits.kv_tokens.all < limits.max_model_len)
      throw Error("--kv-tokens {}: one request may take {} tokens (--max-model-len)",
                  *limits.kv_tokens.all, limits.max_model_len);
  } else {
    pages_each = most_that_fit(demand, least, of_longest);
  }
  while (true) {
    try {
      return plan_pools(demand, policy, pools_of(limits, pages_each));
    } catch (const UsageError&) {
      throw;
    } catch (const Error&) {
      if (limits.kv_tokens.all || pages_each == least) throw;
      pages_each = std::max(least, pages_each / 2);
    }
  }
}

namespace {

/// Throws Error where the pools do not fit beside what else `plan` has on a tier.
void check_rooms(const CostModel& costs, const Plan& plan, const PolicyRun& policy,
                 const ServingLimits& limits) {
  for (const Tier tier : {Tier::hbm, Tier::ddr, Tier::cxl}) {
    double pools = 0;
    double token_bytes = 0;
    for (const KvCohort& cohort : policy.kv_cohorts()) {
      const auto layers = static_cast<double>(std::ranges::count(cohort.homes, tier));
      if (layers == 0) continue;
      token_bytes = layers * kv_bytes_per_token(costs.model());
      pools += static_cast<double>(cohort.pages * page_tokens) * token_bytes;
    }
    const double beside = plan.footprint.total(tier) - plan.footprint.kv[tier];
    const double room = std::max(0.0, static_cast<double>(costs.capacity_bytes(tier)) - beside);
    if (pools <= room || pools == 0) continue;
    throw Error("--kv-tokens {}: {} has room for {:.0f} tokens, beside {} of weights and values",
                to_string(limits.kv_tokens), to_string(tier), std::floor(room / token_bytes),
                format_bytes(static_cast<std::uint64_t>(beside)));
  }
}

/// The policy's plan for requests that share so many tokens; nothing where that fits nowhere.
Candidate plan_sharing(const CostModel& costs, LoadedPolicy& policy, const ServingLimits& limits,
                       std::int64_t tokens) {
  return plan_with(policy, costs, shared_by(limits, tokens));
}

/// The most of [least, most] for each of `max_sequences` that fit all tiers, in pages; nothing when
/// not even the least do.
std::int64_t most_that_fit(const CostModel& costs, LoadedPolicy& policy,
                           const ServingLimits& limits) {
  const auto candidate = [&](std::int64_t pages_each) {
    return plan_sharing(costs, policy, limits, pages_each * limits.max_sequences * page_tokens);
  };
  std::int64_t fitting = least_pages(limits);
  if (const Candidate least = candidate(fitting); !least.fits())
    throw Error("{}; {}", least.plan ? least.plan->shortage : least.problem, smaller);
  std::int64_t too_many = KvCache::pages_for(limits.max_model_len) + 1;
  while (too_many - fitting > 1) {
    const std::int64_t middle = (fitting + too_many) / 2;
    (candidate(middle).fits() ? fitting : too_many) = middle;
  }
  return fitting * limits.max_sequences;
}

/// The plan of a policy for the pools that `limits` say.
MachinePlan plan_given_pools(const CostModel& costs, LoadedPolicy& policy,
                             const ServingLimits& limits) {
  const KvTokens& given = limits.kv_tokens;
  const auto plan_for = [&](std::int64_t tokens) {
    Candidate candidate = plan_sharing(costs, policy, limits, tokens);
    if (!candidate.fits()) {
      throw Error("--kv-tokens {}: {}", to_string(given),
                  candidate.plan ? candidate.plan->shortage : candidate.problem);
    }
    return std::move(*candidate.plan);
  };
  if (given.all)
    return {.plan = plan_for(*given.all), .kv = {.all = KvCache::pages_for(*given.all)}};
  const bool both = given.hbm && given.ddr;
  MachinePlan machine{
      .plan = plan_for(given.hbm ? *given.hbm : *given.ddr),
      .kv = fixed_pools(given, {.all = both ? 0 : most_that_fit(costs, policy, limits)})};
  if (!given.hbm) return machine;
  const PolicyRun asked(policy.policy(), costs, machine.plan.workload, machine.kv);
  if (!has_kv_in_hbm(asked))
    machine.plan = plan_for(given.ddr ? *given.ddr : machine.kv.all * page_tokens);
  return machine;
}

}  // namespace

MachinePlan plan_serving_on(const CostModel& costs, LoadedPolicy& policy,
                            const ServingLimits& limits) {
  const KvTokens& given = limits.kv_tokens;
  MachinePlan machine = [&]() -> MachinePlan {
    if (given.all || given.by_tier()) return plan_given_pools(costs, policy, limits);
    const std::int64_t pages = most_that_fit(costs, policy, limits);
    return {.plan = *plan_sharing(costs, policy, limits, pages * page_tokens).plan,
            .kv = {.all = pages}};
  }();
  const PolicyRun run(policy.policy(), costs, machine.plan.workload, machine.kv);
  check_longest(limits, run);
  check_rooms(costs, machine.plan, run, limits);
  return machine;
}

}  // namespace sluice
