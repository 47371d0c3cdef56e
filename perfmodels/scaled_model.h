#pragma once

#include "perfmodels/cost_model.h"
#include "perfmodels/roofline.h"

namespace sluice {

/// How many times as fast parts of a machine would be.
struct SpeedUp {
  double link = 1;      ///< all transfers to and from HBM
  double ddr = 1;       ///< what the CPU reads, DDR and CXL
  double cpu_gemm = 1;  ///< the CPU's arithmetic
};

/// Another cost model's machine with faster parts. A CPU sublayer's time is carried over
/// (carried_over()) from the bandwidth and the rate that the other model itself shows, of FC1 with
/// one row and with 2048, to higher ones.
class ScaledModel : public CostModel {
 public:
  /// `base` outlives it.
  ScaledModel(const CostModel& base, const SpeedUp& speed_up);

  const ModelDimensions& model() const override { return base_.model(); }
  bool has(Device device) const override { return base_.has(device); }
  std::uint64_t capacity_bytes(Tier tier) const override { return base_.capacity_bytes(tier); }

  using CostModel::compute_s;
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double experts_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand,
                   const ExpertPart& part) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  double transfer_s(Tier from, Tier to, double bytes) const override;
  Interference interference(Phase phase) const override { return base_.interference(phase); }
  double two_way_slowdown() const override { return base_.two_way_slowdown(); }
  double task_overhead_s(Device device, int num_sublayers) const override {
    return base_.task_overhead_s(device, num_sublayers);
  }

 private:
  const CostModel& base_;
  SpeedUp speed_up_;
  MachineRates before_;
  MachineRates after_;
};

}  // namespace sluice
