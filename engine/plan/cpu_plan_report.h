#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/cpu_plan.h"
#include "engine/machine/machine_costs.h"
#include "perfmodels/footprint.h"
#include "perfmodels/profile.h"
#include "perfmodels/work.h"

namespace sluice {

/// A plan for the cores of a machine that a profile describes, and what the cost model says of it
/// (perfmodels/cpu_plan_cost.h).
struct CpuPlanReport {
  std::string name;  ///< as it was asked for
  Topology topology;
  CpuPlan plan;  ///< both phases with predicted_s
  /// Bytes that an iteration reads over those that memory gives meanwhile
  /// (cpu.memory_bandwidth_gb_per_s).
  struct MemoryShare {
    double prefill = 0;
    double decode = 0;
  };
  MemoryShare memory_share;
};

/// The workload's iterations: one of all its prompts, and one step of decoding in the middle of the
/// output. `name`: "interleaved"; "static"; "auto", the fastest that is found for each phase
/// (perfmodels/cpu_plan_search.h); or a file with a plan. Throws Error, in one line, where the
/// profile does not describe its cores, and where the file is no plan for them.
CpuPlanReport report_cpu_plan(const std::string& name, const MachineProfile& profile,
                              const ModelDimensions& model, const Workload& workload);

/// The machine's costs while its CPU computes by the plan: what policies, plans and the simulator
/// go by then.
MachineCosts costs_by_cpu_plan(MachineCosts costs, const MachineProfile& profile,
                               const CpuPlan& plan);

/// A machine's costs, and the plan for its CPU's cores that they are by, where one was asked for.
struct PlannedCosts {
  MachineCosts costs;
  std::optional<CpuPlanReport> cpu_plan;
};

/// The costs while the CPU computes by the plan `name` of report_cpu_plan(), made for such a
/// workload; without a name as they are. `machine` is a profile's name or file.
PlannedCosts costs_by_cpu_plan(MachineCosts costs, const std::string& machine,
                               const std::optional<std::string>& name, const Workload& workload);

/// As as_json() of a CpuPlan; each phase also has `memory_share`.
nlohmann::ordered_json cpu_plan_report_json(const CpuPlanReport& report);

/// "36 cores in 2 groups, 4 left out"
std::string summary_of(const CpuPhasePlan& phase);
/// The same of both: "prefill 40 cores in 2 groups; decode 36 cores in 2 groups, 4 left out"
std::string summary_of(const CpuPlan& plan);

/// For each phase the groups, the cores left out, seconds of an iteration and its share of the
/// memory's limit.
std::string describe_cpu_plan(const CpuPlanReport& report);

}  // namespace sluice
