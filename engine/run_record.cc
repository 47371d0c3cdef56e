#include "engine/run_record.h"

namespace sluice {

void RunRecord::add(const SubBatch& sub_batch, const BatchShape& shape) {
  iterations_.push_back({.shape = shape,
                         .logit_rows = sub_batch.batch.num_logit_rows(),
                         .placements = sub_batch.placements});
}

KernelTotals RunRecord::predict(const CostModel& costs) const {
  KernelTotals totals;
  for (const Iteration& iteration : iterations_) {
    auto& phase = totals.by_phase[static_cast<std::size_t>(iteration.shape.phase)];
    const auto add = [&](Sublayer sublayer, double seconds) {
      auto& entry = phase[static_cast<std::size_t>(sublayer)];
      entry.seconds += seconds;
      ++entry.count;
    };
    for (const Placement& placement : iteration.placements) {
      const bool whole = placement[Sublayer::qk] == placement[Sublayer::sv];
      for (const Sublayer sublayer : layer_sublayers) {
        if (whole && sublayer == Sublayer::sv) continue;
        const Sublayer asked = whole && sublayer == Sublayer::qk ? Sublayer::attention : sublayer;
        add(asked, costs.compute_s(placement[sublayer], asked, iteration.shape));
      }
    }
    if (iteration.logit_rows > 0)
      add(Sublayer::lm_head, costs.lm_head_s(Device::cpu, iteration.logit_rows));
  }
  return totals;
}

}  // namespace sluice
