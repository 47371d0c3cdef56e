#pragma once

#include "perfmodels/cost_model.h"

namespace sluice::test {

/// Another cost model with all times, or those of the CPU's kernels, multiplied.
class FactorCosts : public CostModel {
 public:
  FactorCosts(const CostModel& base, double everything, double cpu)
      : base_(base), everything_(everything), cpu_(cpu) {}
  using CostModel::compute_s;
  const ModelDimensions& model() const override { return base_.model(); }
  bool has(Device device) const override { return base_.has(device); }
  std::uint64_t capacity_bytes(Tier tier) const override { return base_.capacity_bytes(tier); }
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override {
    const double factor = device == Device::cpu ? everything_ * cpu_ : everything_;
    return factor * base_.compute_s(device, sublayer, shape, operand);
  }
  double lm_head_s(Device device, std::int64_t logit_rows) const override {
    return everything_ * base_.lm_head_s(device, logit_rows);
  }
  double transfer_s(Tier from, Tier to, double bytes) const override {
    return everything_ * base_.transfer_s(from, to, bytes);
  }
  double task_overhead_s(Device device, int num_sublayers) const override {
    return everything_ * base_.task_overhead_s(device, num_sublayers);
  }

 private:
  const CostModel& base_;
  double everything_;
  double cpu_;
};

}  // namespace sluice::test
