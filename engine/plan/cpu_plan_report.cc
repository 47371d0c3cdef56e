#include "engine/plan/cpu_plan_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "engine/console/core_list.h"
#include "engine/console/tables.h"
#include "engine/machine/cpu_plan_store.h"
#include "engine/plan/plan_report.h"
#include "perfmodels/cpu_plan_cost.h"
#include "perfmodels/cpu_plan_search.h"
#include "perfmodels/planned_model.h"

namespace sluice {
namespace {

constexpr double giga = 1e9;

/// A phase's iteration, and how long it takes by a plan.
struct PhaseCost {
  PlanWork work;
  CpuPlanCost seconds;
};

PhaseCost phase_cost(const MachineProfile& profile, const ModelDimensions& model,
                     const Workload& workload, Phase phase, const SequenceWork& sequence) {
  const std::vector<SequenceWork> sequences(static_cast<std::size_t>(workload.batch), sequence);
  const PlanWork work = plan_work(model, sequences);
  const BatchShape shape = {.phase = phase,
                            .batch = workload.batch,
                            .rows = sequence.rows,
                            .context = sequence.context + sequence.rows};
  return {.work = work,
          .seconds = CpuPlanCost(profile.cpu_cores->topology.value,
                                 core_rates(profile, model, shape), work)};
}

CpuPlan named_plan(const std::string& name, const Topology& topology, const PhaseCost& prefill,
                   const PhaseCost& decode) {
  if (name == "interleaved") return interleaved_plan(topology.cores());
  if (name == "static") return static_plan(topology.cores(), topology);
  if (name != "auto") return asked_cpu_plan(name, topology);
  const PlanSearchOptions options{.top = 1};
  return {.prefill = search_full_plans(topology, prefill.seconds, options).best.front().plan,
          .decode = search_plans(topology, decode.seconds, options).best.front().plan};
}

std::string groups_table(const CpuPhasePlan& phase) {
  constexpr std::size_t most_shown = 16;
  TableRows rows = {{"   ", "node", "cores", "share", "numbers"}};
  for (std::size_t i = 0; i < std::min(phase.groups.size(), most_shown); ++i) {
    const CpuGroup& group = phase.groups[i];
    rows.push_back({"   ", group.numa_node ? std::to_string(*group.numa_node) : "all",
                    std::to_string(group.cores.size()), fmt::format("{:.1f} %", 100 * group.share),
                    cores_text(group.cores)});
  }
  std::string text = format_table(rows);
  if (phase.groups.size() > most_shown)
    text += fmt::format("    and {} groups more (--json lists them)\n",
                        phase.groups.size() - most_shown);
  return text;
}

std::string cores_in_groups(const CpuPhasePlan& phase) {
  const std::size_t groups = phase.groups.size();
  return fmt::format("{} cores in {} group{}", phase.num_cores(), groups, groups == 1 ? "" : "s");
}

std::string describe(const char* name, const CpuPhasePlan& phase, double memory_share) {
  std::string text = fmt::format("{}: {} an iteration, {:.0f} % of the memory's limit; {}\n", name,
                                 seconds_text(phase.predicted_s.value_or(0)), 100 * memory_share,
                                 cores_in_groups(phase));
  text += groups_table(phase);
  if (!phase.left_out.empty())
    text += fmt::format("    left out: {} cores: {}\n", phase.left_out.size(),
                        cores_text(phase.left_out));
  return text;
}

}  // namespace

std::string summary_of(const CpuPhasePlan& phase) {
  return cores_in_groups(phase) +
         (phase.left_out.empty() ? "" : fmt::format(", {} left out", phase.left_out.size()));
}

CpuPlanReport report_cpu_plan(const std::string& name, const MachineProfile& profile,
                              const ModelDimensions& model, const Workload& workload) {
  if (!profile.cpu_cores)
    throw Error(
        "--cpu-plan: the profile {} does not describe its CPU's cores (cpu.topology); "
        "xeon-6230-2 is one that does",
        profile.name);
  const Topology& topology = profile.cpu_cores->topology.value;
  const PhaseCost prefill = phase_cost(profile, model, workload, Phase::prefill,
                                       {.rows = workload.input_tokens, .context = 0});
  const PhaseCost decode =
      phase_cost(profile, model, workload, Phase::decode,
                 {.rows = 1, .context = workload.input_tokens + workload.output_tokens / 2});
  CpuPlanReport report = {.name = name,
                          .topology = topology,
                          .plan = named_plan(name, topology, prefill, decode),
                          .memory_share = {}};
  const double bytes_per_s = profile.cpu.memory_bandwidth_gb_per_s.value * giga;
  const auto predict = [&](const PhaseCost& cost, CpuPhasePlan& plan) {
    plan.predicted_s = cost.seconds(plan);
    return cost.work.bytes() / bytes_per_s / *plan.predicted_s;
  };
  report.memory_share = {.prefill = predict(prefill, report.plan.prefill),
                         .decode = predict(decode, report.plan.decode)};
  return report;
}

MachineCosts costs_by_cpu_plan(MachineCosts costs, const MachineProfile& profile,
                               const CpuPlan& plan) {
  costs.model = std::make_shared<PlannedModel>(profile, costs.model->model(), plan);
  return costs;
}

PlannedCosts costs_by_cpu_plan(MachineCosts costs, const std::string& machine,
                               const std::optional<std::string>& name, const Workload& workload) {
  if (!name) return {std::move(costs), std::nullopt};
  const MachineProfile profile = load_profile(machine);
  CpuPlanReport report = report_cpu_plan(*name, profile, costs.model->model(), workload);
  MachineCosts planned = costs_by_cpu_plan(std::move(costs), profile, report.plan);
  return {std::move(planned), std::move(report)};
}

nlohmann::ordered_json cpu_plan_report_json(const CpuPlanReport& report) {
  nlohmann::json json = as_json(report.plan, report.topology);
  json["prefill"]["memory_share"] = report.memory_share.prefill;
  json["decode"]["memory_share"] = report.memory_share.decode;
  return json;
}

std::string summary_of(const CpuPlan& plan) {
  return fmt::format("prefill {}; decode {}", summary_of(plan.prefill), summary_of(plan.decode));
}

std::string describe_cpu_plan(const CpuPlanReport& report) {
  return fmt::format("CPU plan {}, of {}:\n{}{}", report.name, report.topology.summary(),
                     describe("prefill", report.plan.prefill, report.memory_share.prefill),
                     describe("decode", report.plan.decode, report.memory_share.decode));
}

}  // namespace sluice
