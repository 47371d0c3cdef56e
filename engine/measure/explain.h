#pragma once

#include <cstdint>
#include <string>

#include "codelets/runtime/kernel_times.h"
#include "engine/batching/policy_run.h"
#include "engine/batching/run_record.h"
#include "engine/machine/machine_costs.h"
#include "engine/measure/bench.h"

namespace sluice {

/// What a run took, and by which rates it is judged.
struct MeasuredRun {
  KernelTotals cpu, accelerator;  ///< what kernels took there
  double wall_s = 0;
  MachineRates rates;  ///< probed beside the run
};

/// Predicted against measured, a line a device, phase and sublayer; `head_device` ran the LM head.
/// A measured cost model is asked twice: as it is, and at the rates that were probed beside the
/// run.
std::string explain_run(const RunRecord& record, Device head_device, const MeasuredRun& run,
                        const CostModel& costs, const std::string& source);

/// Watches one run, from here to end(): its kernels, and the rates around it.
class RunExplainer {
 public:
  /// A second for the probes. All outlive it; no task may run. A GPU's kernels have to be timed
  /// (GpuWorker::Launches).
  RunExplainer(Runtime& runtime, DType dtype, std::uint64_t working_set_bytes, PolicyRun& policy);
  void end(double wall_s);
  /// The run, then explain_plan(): everything that --explain prints.
  std::string explain(const MachineCosts& costs, CheckedPolicy& policy,
                      const Workload& workload) const;

 private:
  Runtime& runtime_;
  PolicyRun& policy_;
  RunRecord record_;
  MachineProbes probes_;
  MachineRates before_;
  MeasuredRun measured_;
};

}  // namespace sluice
