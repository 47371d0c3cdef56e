#include "engine/batching/run_record.h"

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

KernelTotals RunRecord::predict(const CostModel& costs, Device device, Device head_device) const {
  KernelTotals totals;
  const auto add = [&](Phase phase, Sublayer sublayer, double seconds) {
    auto& entry =
        totals.by_phase[static_cast<std::size_t>(phase)][static_cast<std::size_t>(sublayer)];
    entry.seconds += seconds;
    ++entry.count;
  };
  const auto add_layer = [&](const Placement& placement, const BatchShape& shape,
                             const auto& sublayers) {
    for (const Sublayer sublayer : sublayers) {
      const Sublayer placed = sublayer == Sublayer::attention ? Sublayer::qk : sublayer;
      if (placement[placed] != device) continue;
      add(shape.phase, sublayer, costs.compute_s(device, sublayer, shape));
    }
  };
  using Sublayers = std::vector<Sublayer>;
  const auto attention = [](const Placement& placement) {
    if (placement[Sublayer::qk] == placement[Sublayer::sv]) return Sublayers{Sublayer::attention};
    return Sublayers{Sublayer::qk, Sublayer::sv};
  };
  const Sublayers behind_attention = {Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2};
  for (const Iteration& iteration : iterations_) {
    const BatchShape& all = iteration.all.shape;
    BatchShape drawing = all;  // all that the last layer has behind attention
    if (iteration.logit_rows < all.total_rows()) {
      drawing.batch = iteration.logit_rows;
      drawing.rows = 1;
    }
    const std::vector<Placement>& placements = iteration.all.placements;
    for (std::size_t layer = 0; layer < placements.size(); ++layer) {
      add_layer(placements[layer], all, Sublayers{Sublayer::qkv});
      const BatchShape& rows = layer + 1 < placements.size() ? all : drawing;
      if (rows.batch > 0) add_layer(placements[layer], rows, behind_attention);
    }
    for (const Part& part : iteration.parts) {
      for (const Placement& placement : part.placements)
        add_layer(placement, part.shape, attention(placement));
    }
    if (iteration.logit_rows > 0 && head_device == device)
      add(all.phase, Sublayer::lm_head, costs.lm_head_s(device, iteration.logit_rows));
  }
  return totals;
}

}  // namespace sluice
