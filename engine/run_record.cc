#include "engine/run_record.h"

namespace sluice {

BatchShape shape_of(const BatchPart& part) {
  const auto mean = [&](std::int64_t sum) {
    const std::int64_t count = part.batch.num_sequences();
    return (sum + count - 1) / count;
  };
  return {.phase = part.phase,
          .batch = part.batch.num_sequences(),
          .rows = mean(part.batch.num_rows()),
          .context = mean(part.batch.context_tokens())};
}

void RunRecord::add(const SubBatch& sub_batch) {
  const BatchPart whole = sub_batch.whole();
  Iteration& iteration = iterations_.emplace_back();
  iteration.all = {shape_of(whole), whole.placements};
  iteration.logit_rows = whole.batch.num_logit_rows();
  iteration.parts.reserve(sub_batch.parts.size());
  for (const BatchPart& part : sub_batch.parts)
    iteration.parts.push_back({shape_of(part), part.placements});
}

KernelTotals RunRecord::predict(const CostModel& costs) const {
  KernelTotals totals;
  const auto add = [&](Phase phase, Sublayer sublayer, double seconds) {
    auto& entry =
        totals.by_phase[static_cast<std::size_t>(phase)][static_cast<std::size_t>(sublayer)];
    entry.seconds += seconds;
    ++entry.count;
  };
  const auto add_all = [&](const Part& part, const auto& sublayers) {
    for (const Placement& placement : part.placements) {
      for (const Sublayer sublayer : sublayers(placement)) {
        const Sublayer placed = sublayer == Sublayer::attention ? Sublayer::qk : sublayer;
        add(part.shape.phase, sublayer, costs.compute_s(placement[placed], sublayer, part.shape));
      }
    }
  };
  using Sublayers = std::vector<Sublayer>;
  const auto linear = [](const Placement&) {
    return Sublayers{Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2};
  };
  const auto attention = [](const Placement& placement) {
    if (placement[Sublayer::qk] == placement[Sublayer::sv]) return Sublayers{Sublayer::attention};
    return Sublayers{Sublayer::qk, Sublayer::sv};
  };
  for (const Iteration& iteration : iterations_) {
    add_all(iteration.all, linear);
    for (const Part& part : iteration.parts) add_all(part, attention);
    if (iteration.logit_rows > 0)
      add(iteration.all.shape.phase, Sublayer::lm_head,
          costs.lm_head_s(Device::cpu, iteration.logit_rows));
  }
  return totals;
}

}  // namespace sluice
