#include "perfmodels/planned_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "perfmodels/cpu_plan_cost.h"

namespace sluice {
namespace {

constexpr double giga = 1e9;

/// Of all groups together, as the slowest one for its share has it.
struct Together {
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double cores = std::numeric_limits<double>::infinity();
};

Together together(const CpuPlanCost& cost, const CpuPhasePlan& plan) {
  Together all;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const CpuGroup& group = plan.groups[i];
    all.bytes_per_s = std::min(all.bytes_per_s, cost.bandwidth(plan, i) / group.share);
    all.cores = std::min(all.cores, static_cast<double>(group.cores.size()) / group.share);
  }
  return all;
}

/// With what the groups read on all nodes in turn.
CpuPhasePlan without_nodes(CpuPhasePlan plan) {
  for (CpuGroup& group : plan.groups) group.numa_node.reset();
  return plan;
}

}  // namespace

MachineProfile profile_by_plan(MachineProfile profile, const CpuPhasePlan& plan,
                               std::int64_t num_kv_heads) {
  const CoreRates rates = core_rates(profile);
  const CpuPlanCost cost(profile.cpu_cores->topology.value, rates, {});
  const Together weights = together(cost, plan);
  const bool by_heads = std::ssize(plan.groups) <= num_kv_heads;
  const Together kv = by_heads ? weights : together(cost, without_nodes(plan));
  DeviceProfile& cpu = profile.cpu;
  const double of_cores = weights.cores / cpu.cores->value;
  const double of_memory = kv.bytes_per_s / (giga * cpu.memory_bandwidth_gb_per_s.value);
  cpu.gemm_tflop_per_s.value = cpu.gemm_tflop_per_s.value.scaled(of_cores);
  cpu.attention_tflop_per_s.value = cpu.attention_tflop_per_s.value.scaled(of_cores);
  cpu.attention_bandwidth_gb_per_s.value = cpu.attention_bandwidth_gb_per_s.value.scaled(of_memory);
  cpu.memory_bandwidth_gb_per_s.value = weights.bytes_per_s / giga;
  // The profile's own has a round of all cores.
  const Curve& round_us = profile.cpu_cores->round_us.value;
  const double saved_us =
      round_us.at(cpu.cores->value) - round_us.at(static_cast<double>(plan.num_cores()));
  cpu.task_overhead_us.value = std::max(0.0, cpu.task_overhead_us.value - saved_us);
  return profile;
}

PlannedModel::PlannedModel(const MachineProfile& profile, const ModelDimensions& model,
                           const CpuPlan& plan)
    : prefill_(profile_by_plan(profile, plan.prefill, model.num_kv_heads), model),
      decode_(profile_by_plan(profile, plan.decode, model.num_kv_heads), model) {}

}  // namespace sluice
