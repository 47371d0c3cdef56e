#include "schedulers/plugin.h"

namespace sluice {
namespace {

/// Everything in HBM and on the GPU. A machine without one keeps the data in DDR, and the engine
/// computes there, with a word on stderr.
class GpuOnly : public Policy {
 public:
  MemoryPlan plan_memory() override {
    const Tier tier = costs().has(Device::gpu) ? Tier::hbm : Tier::ddr;
    MemoryPlan plan = {
        .layers = std::vector<LayerHomes>(static_cast<std::size_t>(model().num_layers),
                                          LayerHomes::all(tier, tier)),
        .embedding = tier,
        .lm_head = tier};
    pipelines_ = {};
    if (tier == Tier::hbm) cut_prefill_to_fit(costs(), plan, workload(), pipelines_);
    return plan;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return Placement(Device::gpu);
  }
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::GpuOnly, "gpu-only", "everything in HBM and on the GPU");
