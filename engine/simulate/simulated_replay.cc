#include "engine/simulate/simulated_replay.h"

#include <array>
#include <utility>

#include "codelets/runtime/runtime.h"
#include "codelets/runtime/simulated.h"
#include "codelets/runtime/task_model.h"
#include "engine/run/run_engine.h"
#include "engine/simulate/simulated_contention.h"
#include "engine/simulate/simulated_links.h"
#include "graphs/imagined_model.h"
#include "schedulers/crash_guard.h"

namespace sluice {
namespace {

/// For how long everything has worked, as far as tasks have ended.
class BusyWatch {
 public:
  BusyWatch(const CostModel& costs, const SimulatedRuntime& machine)
      : costs_(costs), machine_(machine), finished_([this](const FinishedTask& task) {
          (task.device == Device::gpu ? busy_.gpu_s : busy_.cpu_s) += task.end_s - task.start_s;
        }) {}

  BusyTimes busy() {
    busy_ += take_link_traffic(costs_, machine_).busy;
    return busy_;
  }

 private:
  const CostModel& costs_;
  const SimulatedRuntime& machine_;
  BusyTimes busy_;
  FinishedTasks finished_;  ///< gone first
};

}  // namespace

ReplayOutcome simulate_replay(const SimulatedReplaySetup& setup, ReplayRequests requests) {
  const CostModel& costs = *setup.costs;
  const MachinePlan machine_plan = plan_serving_on(costs, setup.policy, setup.limits);
  PolicyRun policy(setup.policy.policy(), costs, machine_plan.plan.workload, machine_plan.kv);
  policy.check_as_planned(machine_plan.plan.memory, machine_plan.plan.workload);
  setup.policy.set_staging(staging_of(machine_plan.plan, costs.model()));
  const SimulatedRuntime machine(
      {.has_gpu = costs.has(Device::gpu),
       .scheduler = setup.policy.scheduler(),
       .gpu_bytes = setup.hbm_limit_bytes.value_or(costs.capacity_bytes(Tier::hbm))});
  CrashGuard::stay_in_charge();
  const CostsInUse costs_in_use(costs, TaskTime::with_overhead, &policy.memory());
  std::optional<SimulatedContention> contention;
  if (SimulatedContention::is_needed(costs)) contention.emplace(costs);
  const ImaginedModel model(setup.config, setup.dtype, costs.model(), policy.memory(),
                            tier_nodes(machine));
  std::vector<KvCache> kv;
  for (const KvCohort& cohort : policy.kv_cohorts())
    kv.emplace_back(model.shape(), cohort.homes, tier_nodes(machine), cohort.pages);
  RunEngine engine(model, kv, policy, setup.options, {.sharing = setup.sharing});
  wait_for_all_tasks();
  BusyWatch watch(costs, machine);
  watch.busy();  // what was moved before does not count
  const std::atomic<bool> never{false};
  ReplayOutcome outcome = replay({.engine = engine.engine(),
                                  .executor = engine.executor(),
                                  .pools = engine.pools(),
                                  .tiers = engine.tiers(),
                                  .resources = resources_of(costs),
                                  .busy_s = [&] { return busy_seconds(costs, watch.busy()); },
                                  .progress = {}},
                                 std::move(requests), never);
  wait_for_all_tasks();
  return outcome;
}

}  // namespace sluice
