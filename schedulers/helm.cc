// HeLM's latency-optimising weight placement (section V-B, Listing 3): of each decoder layer the
// first FC matrix, norms and biases in HBM, so that what must be loaded takes as long as what is
// computed meanwhile. Everything runs on the GPU.
#include "schedulers/host_tier.h"
#include "schedulers/percentages.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class Helm : public Policy {
 public:
  MemoryPlan plan_memory() override {
    if (!costs().has(Device::gpu)) return Policy::plan_memory();
    const Tier host = host_tier(costs());
    LayerHomes homes = LayerHomes::all(host, Tier::hbm);
    allocate_by_middle(model(), by_size(attention_block), with_gpu(10, host), homes);
    allocate_by_middle(model(), by_size(ffn_block), with_gpu(30, host), homes);
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers), homes);
    plan.lm_head = Tier::hbm;
    pipelines_.fill({.prefetch = Prefetch::half_layer});
    cut_prefill_to_fit(costs(), plan, workload(), pipelines_);
    return plan;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return Placement(costs().has(Device::gpu) ? Device::gpu : Device::cpu);
  }

 private:
  /// Listing 3's order: GPU, host, storage.
  static TierPercentages with_gpu(double percent, Tier host) {
    return {.tiers = {Tier::hbm, host, Tier::disk}, .percents = {percent, 100 - percent, 0}};
  }

  /// Listing 3, line 13.
  std::vector<WeightKind> by_size(std::span<const WeightKind> block) const {
    std::vector<WeightKind> sorted(block.begin(), block.end());
    std::stable_sort(sorted.begin(), sorted.end(), [this](WeightKind a, WeightKind b) {
      return weight_elements(model(), a) < weight_elements(model(), b);
    });
    return sorted;
  }
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::Helm, "helm",
              "HeLM: the first FC matrix of each layer in HBM, all on the GPU");
