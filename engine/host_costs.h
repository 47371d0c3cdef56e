#pragma once

#include <cstdint>

#include "perfmodels/cost_model.h"

namespace sluice {

/// This machine for policies: its CPU, DDR and nothing else, with rates in place of measurements.
/// Compute is the longer of reading the operand and of arithmetic, as in work.h.
class HostCosts : public CostModel {
 public:
  /// Rates of a desktop processor: policies compare devices, and there is one.
  static constexpr MachineRates nominal_rates = {.read_bandwidth_bytes_per_s = 50e9,
                                                 .gemm_flop_per_s = 1e12};

  HostCosts(const ModelDimensions& model, std::uint64_t ddr_bytes,
            const MachineRates& rates = nominal_rates)
      : model_(model), ddr_bytes_(ddr_bytes), rates_(rates) {}

  using CostModel::compute_s;
  const ModelDimensions& model() const override { return model_; }
  bool has(Device device) const override { return device == Device::cpu; }
  std::uint64_t capacity_bytes(Tier tier) const override {
    return tier == Tier::ddr ? ddr_bytes_ : 0;
  }
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  double transfer_s(Tier from, Tier to, double bytes) const override;
  double task_overhead_s(Device device) const override;

 private:
  double longest_s(double bytes, double flops) const;

  ModelDimensions model_;
  std::uint64_t ddr_bytes_;
  MachineRates rates_;
};

}  // namespace sluice
