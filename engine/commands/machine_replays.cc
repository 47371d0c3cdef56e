#include "engine/commands/machine_replays.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "engine/commands/options/simulated_host_options.h"
#include "engine/commands/simulator.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "engine/plan/cpu_plan_report.h"
#include "engine/plan/points.h"
#include "engine/plan/policy_choice.h"
#include "engine/replay/outcome_json.h"
#include "engine/run/estimate_executor.h"

namespace sluice {
namespace {

/// One replay.
struct Job {
  std::string machine;  ///< name or file
  PlannedCosts planned;
  std::string policy;  ///< name or file
  std::size_t kind = 0;
  Arrivals arrivals;
  ReplayedPoint replayed;
  std::string problem;  ///< instead of that
};

class Replays {
 public:
  explicit Replays(const MachineReplays& asked)
      : asked_(asked), config_(find_model_config(asked.model)) {
    for (const std::string& policy : asked.policies) {
      if (policy != any_policy) LoadedPolicy(policy, asked.policy_options);  // a wrong one
    }
    for (const std::string& machine : asked.machines) add(machine);
  }

  std::vector<Job>& jobs() { return jobs_; }

  /// Throws Error.
  ReplayOutcome estimate(const Job& job, const std::function<void(std::int64_t)>& progress) const {
    const CostModel& costs = *job.planned.costs.model;
    LoadedPolicy policy(job.policy, asked_.policy_options);
    const MachinePlan plan = plan_serving_on(costs, policy, asked_.serving.limits);
    PolicyRun run(policy.policy(), costs, plan.plan.workload, plan.kv);
    EstimateExecutor executor(costs, run);
    std::vector<KvPool> pools;
    std::vector<std::string> tiers;
    for (const KvCohort& cohort : run.kv_cohorts()) {
      pools.emplace_back(cohort.pages, asked_.serving.sharing);
      tiers.emplace_back(to_string(cohort.homes.front()));
    }
    EngineOptions options;
    asked_.serving.apply_to(options);
    options.policy = &run;
    Engine engine(config_, pools, executor, options);
    return replay({.engine = engine,
                   .executor = executor,
                   .pools = pools,
                   .tiers = tiers,
                   .resources = resources_of(costs),
                   .busy_s = [&] { return busy_seconds(costs, executor.busy()); },
                   .progress = progress},
                  {.requests = asked_.workloads.requests(job.kind, job.arrivals),
                   .arrivals = job.arrivals,
                   .tokens = all_tokens(config_),
                   .seed = asked_.workloads.seed},
                  interrupt_flag());
  }

  /// What the simulator's program is told of a job.
  std::vector<std::string> arguments_for(const Job& job) const {
    std::vector<std::string> arguments = {
        "replay",   "--log=root.thresh:error",   "--model", asked_.model, "--machine", job.machine,
        "--policy", simulated_policy(job.policy)};
    for (const auto& [key, value] : asked_.policy_options) {
      arguments.emplace_back("--policy-option");
      arguments.push_back(fmt::format("{}={}", key, value));
    }
    ServingSettings serving = asked_.serving;
    serving.max_model_len = serving.limits.max_model_len;
    for (const std::vector<std::string>& more :
         {arguments_of(serving), arguments_of(asked_.host),
          arguments_of(asked_.workloads, job.kind, job.arrivals)})
      arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  void finish(Job& job, const ReplayOutcome& outcome) const {
    ReplayPoint& point = job.replayed.point;
    point = named_point(asked_.workloads, job.kind, job.arrivals,
                        asked_.workloads.requests(job.kind, job.arrivals));
    point.model = asked_.model;
    point.machine = job.planned.costs.machine;
    point.policy = LoadedPolicy(job.policy, asked_.policy_options).name();
    if (const std::optional<CpuPlanReport>& plan = job.planned.cpu_plan)
      point.cpu_plan = json_text(cpu_plan_report_json(*plan));
    add_outcome(point, outcome, asked_.slo);
    job.replayed.timeline = outcome.timeline;
  }

  std::string name_of(const Job& job) const {
    return fmt::format("{} on {} with {}, {}, {}", asked_.model, job.planned.costs.machine,
                       job.policy, asked_.workloads.name_of(job.kind), to_string(job.arrivals));
  }

 private:
  void add(const std::string& machine) {
    const MachineCosts whole = simulated_costs(machine, model_dimensions(config_, default_dtype),
                                               asked_.model, asked_.host);
    say_if_carried(whole, asked_.model);
    std::vector<PlannedCosts> by_kind;
    for (std::size_t kind = 0; kind < asked_.workloads.num_kinds(); ++kind) {
      by_kind.push_back(
          costs_by_cpu_plan(whole, machine, asked_.host.cpu_plan, mean_workload(kind)));
      if (const std::optional<CpuPlanReport>& plan = by_kind.back().cpu_plan)
        fmt::print(stderr, "sluice: CPU plan {} on {}, {}: {}\n", plan->name, whole.machine,
                   asked_.workloads.name_of(kind), summary_of(plan->plan));
    }
    const MachineCosts& first = by_kind.front().costs;
    for (const std::string& policy : asked_.policies) {
      const std::string chosen = policy == any_policy ? fastest_policy(*first.model) : policy;
      say_unused_pool(first, chosen);
      for (std::size_t kind = 0; kind < by_kind.size(); ++kind) {
        for (const Arrivals& arrivals : asked_.workloads.arrivals)
          jobs_.push_back({machine, by_kind[kind], chosen, kind, arrivals, {}, ""});
      }
    }
  }

  Workload mean_workload(std::size_t kind) const {
    return asked_.workloads.mean_workload(kind, asked_.serving.limits.max_sequences);
  }

  std::string fastest_policy(const CostModel& costs) const {
    const LoadedPolicies known = load_known_policies({});
    const std::vector<Candidate> candidates = plan_with_each(known, costs, mean_workload(0));
    const Candidate& chosen = fastest(candidates);
    fmt::print(stderr, "sluice: {}\n", explain_choice(candidates, chosen));
    return chosen.policy->name();
  }

  void say_unused_pool(const MachineCosts& costs, const std::string& name) const {
    const KvTokens& tokens = asked_.serving.limits.kv_tokens;
    if (!tokens.by_tier()) return;
    try {
      LoadedPolicy policy(name, asked_.policy_options);
      const MachinePlan plan = plan_serving_on(*costs.model, policy, asked_.serving.limits);
      const PolicyRun run(policy.policy(), *costs.model, plan.plan.workload, plan.kv);
      const std::string line = unused_pool(tokens, run);
      if (!line.empty()) fmt::print(stderr, "sluice: {}\n", line);
    } catch (const Error&) {  // is said where it is to run
    }
  }

  const MachineReplays& asked_;
  ModelConfig config_;
  std::vector<Job> jobs_;
};

void estimate_all(Replays& replays) {
  ProgressBar bar("estimating");
  std::vector<Job>& jobs = replays.jobs();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto progress = [&](std::int64_t finished) {
      bar.update(static_cast<double>(i), static_cast<double>(jobs.size()),
                 fmt::format("{} requests", finished));
    };
    try {
      replays.finish(jobs[i], replays.estimate(jobs[i], progress));
    } catch (const Error& error) {
      jobs[i].problem = error.what();
    }
    if (interrupt_flag()) throw Interrupted();
  }
}

void simulate_all(Replays& replays) {
  SimulatorProgram simulator;
  const EndsSoonAfterInterrupt ends_soon([&] { simulator.remove_folder(); });
  std::map<std::string, std::string> machines;
  for (const Job& job : replays.jobs()) {
    if (!machines.contains(job.machine))
      machines[job.machine] = simulator.add_machine(*job.planned.costs.model);
  }
  run_jobs(replays.jobs().size(), "simulating", [&](std::size_t i) {
    Job& job = replays.jobs()[i];
    try {
      const ChildResult child = simulator.run(replays.arguments_for(job), machines.at(job.machine));
      if (child.exit_code != 0) {
        job.problem = SimulatorProgram::problem_of(child);
      } else {
        replays.finish(job, outcome_from_json(child.out));
      }
    } catch (const Error& error) {
      job.problem = error.what();
    }
  });
}

}  // namespace

TokenRange all_tokens(const ModelConfig& model) {
  return {.first = 0, .last = static_cast<std::int32_t>(model.vocab_size - 1)};
}

ReplayPoint named_point(const ReplayWorkloads& workloads, std::size_t kind,
                        const Arrivals& arrivals, const std::vector<TracedRequest>& requests) {
  ReplayPoint point;
  point.workload = workloads.name_of(kind);
  point.arrivals = to_string(arrivals);
  point.seed = workloads.seed;
  point.rate_per_s = arrivals.kind == ArrivalKind::poisson ? std::optional(arrivals.rate_per_s)
                                                           : arrival_rate_per_s(requests);
  return point;
}

std::vector<ReplayedPoint> replay_on_machines(const MachineReplays& asked, ReplayBy by) {
  Replays replays(asked);
  if (by == ReplayBy::estimate) {
    estimate_all(replays);
  } else {
    simulate_all(replays);
  }
  std::vector<ReplayedPoint> points;
  const std::vector<Job>& jobs = replays.jobs();
  if (jobs.size() == 1 && !jobs.front().problem.empty())
    throw Error("{}: {}", replays.name_of(jobs.front()), jobs.front().problem);
  std::set<std::tuple<std::string, std::string, std::string>> said;
  for (const Job& job : jobs) {
    if (job.problem.empty()) {
      points.push_back(job.replayed);
    } else if (said.emplace(job.planned.costs.machine, job.policy, job.problem).second) {
      fmt::print(stderr, "sluice: {}: {}\n", replays.name_of(job), job.problem);
    }
  }
  if (points.empty()) throw Error("nothing of this can be replayed");
  return points;
}

}  // namespace sluice
