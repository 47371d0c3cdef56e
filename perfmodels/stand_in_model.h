#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "perfmodels/cost_model.h"

namespace sluice {

/// A CPU and a stand-in accelerator: as fast as the CPU, with memory of its own behind a link.
struct StandInDevice {
  std::uint64_t memory_bytes = 0;
  /// Of the link, either way. By default those of a local socket on a desktop processor.
  double bytes_per_s = 2e9;
  double latency_s = 50e-6;
};

class StandInModel : public CostModel {
 public:
  /// `cpu` knows no GPU.
  StandInModel(std::unique_ptr<CostModel> cpu, const StandInDevice& stand_in)
      : cpu_(std::move(cpu)), stand_in_(stand_in) {}

  const ModelDimensions& model() const override { return cpu_->model(); }
  bool has(Device /*device*/) const override { return true; }
  /// A sixteenth of HBM is set aside: padding, and what StarPU cuts it into.
  std::uint64_t capacity_bytes(Tier tier) const override;

  using CostModel::compute_s;
  /// The CPU's time on both.
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  double transfer_s(Tier from, Tier to, double bytes) const override;
  double task_overhead_s(Device device) const override;

 private:
  std::unique_ptr<CostModel> cpu_;
  StandInDevice stand_in_;
};

}  // namespace sluice
