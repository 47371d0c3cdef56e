#include "schedulers/policy.h"

#include <algorithm>

#include "perfmodels/layer_cost.h"

namespace sluice {

std::vector<std::string> PolicyOptions::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) keys.push_back(key);
  }
  return keys;
}

void Policy::configure(PolicyOptions& /*options*/) {}

void Policy::start(const CostModel& costs, const Workload& workload) {
  costs_ = &costs;
  workload_ = workload;
  placed_.reset();
}

MemoryPlan Policy::plan_memory() {
  const Tier tier = costs().has(Device::cpu) ? Tier::ddr : Tier::hbm;
  return {.layers = std::vector<LayerHomes>(static_cast<std::size_t>(model().num_layers),
                                            LayerHomes::all(tier, tier)),
          .embedding = tier,
          .lm_head = tier};
}

Pipeline Policy::pipeline(Phase /*phase*/) { return {}; }

Placement Policy::place(std::int64_t /*layer*/, const BatchShape& shape, const LayerHomes& homes) {
  if (!placed_ || placed_->shape != shape || placed_->homes != homes)
    placed_ = {shape, homes, best_placement(costs(), shape, homes, Overlap::transfers).placement};
  return placed_->placement;
}

IterationPlan Policy::plan_iteration(const std::vector<RequestView>& requests) {
  SubBatchPlan all;
  for (const RequestView& request : requests) all.requests.push_back(request.id);
  return {.sub_batches = {std::move(all)}};
}

}  // namespace sluice
