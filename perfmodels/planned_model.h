#pragma once

#include "base/cpu_plan.h"
#include "perfmodels/analytic_model.h"

namespace sluice {

/// The profile with its CPU at the rates that a phase's groups have together, by their shares as
/// CpuPlanCost counts them: the slowest group's reading, and its arithmetic, set those of all. So
/// is KV read, which lies by heads; of a model with fewer KV heads than there are groups it lies on
/// all nodes in turn. What a round of the thread pool takes less than one of all cores comes off
/// each sublayer. Throws Error where the profile does not describe its cores.
MachineProfile profile_by_plan(MachineProfile profile, const CpuPhasePlan& plan,
                               std::int64_t num_kv_heads);

/// A profile's costs while the CPU computes by a plan (Sandwich sections 3.1 and 5): prefill's
/// sublayers by its prefill plan, decode's by its decode plan. The LM head counts as decode's,
/// which has most of them; in an iteration of both phases each sublayer counts by its own phase.
class PlannedModel final : public CostModel {
 public:
  /// Throws Error as profile_by_plan() and AnalyticModel do.
  PlannedModel(const MachineProfile& profile, const ModelDimensions& model, const CpuPlan& plan);

  const ModelDimensions& model() const override { return decode_.model(); }
  bool has(Device device) const override { return decode_.has(device); }
  std::uint64_t capacity_bytes(Tier tier) const override { return decode_.capacity_bytes(tier); }
  using CostModel::compute_s;
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override {
    return of(shape).compute_s(device, sublayer, shape, operand);
  }
  double experts_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand,
                   const ExpertPart& part) const override {
    return of(shape).experts_s(device, sublayer, shape, operand, part);
  }
  double lm_head_s(Device device, std::int64_t logit_rows) const override {
    return decode_.lm_head_s(device, logit_rows);
  }
  double transfer_s(Tier from, Tier to, double bytes) const override {
    return decode_.transfer_s(from, to, bytes);
  }
  double task_overhead_s(Device device, int count) const override {
    return decode_.task_overhead_s(device, count);
  }

 private:
  const AnalyticModel& of(const BatchShape& shape) const {
    return shape.phase == Phase::prefill ? prefill_ : decode_;
  }
  AnalyticModel prefill_;
  AnalyticModel decode_;
};

}  // namespace sluice
