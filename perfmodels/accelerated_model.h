#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "perfmodels/cost_model.h"

namespace sluice {

/// A link that has one rate, the same either way.
struct LinkRate {
  double bytes_per_s = 0;
  double latency_s = 0;
};

/// A CPU and an accelerator, each as a model of its own knows it, with a link between their
/// memories.
class AcceleratedModel : public CostModel {
 public:
  struct Parts {
    std::shared_ptr<const CostModel> cpu;          ///< knows no GPU
    std::shared_ptr<const CostModel> accelerator;  ///< knows the GPU; null: one as fast as the CPU
    std::uint64_t hbm_bytes = 0;                   ///< that may be used
    std::optional<LinkRate> link;  ///< without it, what the accelerator's model says
    bool shares_cores = false;     ///< a stand-in: it computes where the CPU does
  };
  /// Throws Error where neither says what the link takes.
  explicit AcceleratedModel(Parts parts);

  const ModelDimensions& model() const override { return parts_.cpu->model(); }
  bool has(Device /*device*/) const override { return true; }
  std::uint64_t capacity_bytes(Tier tier) const override;

  using CostModel::compute_s;
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double experts_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand,
                   const ExpertPart& part) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  /// Between CXL memory and HBM straight: the slower link's time.
  double transfer_s(Tier from, Tier to, double bytes) const override;
  /// As measured with the accelerator; cores that both compute on are shared evenly.
  Interference interference(Phase phase) const override;
  double two_way_slowdown() const override;
  double task_overhead_s(Device device, int num_sublayers) const override;

 private:
  /// Whose model answers for a device, and which device that model takes it for.
  std::pair<const CostModel*, Device> of(Device device) const;

  Parts parts_;
};

}  // namespace sluice
