// HeLM's throughput-optimising weight placement (section V-C): all weights in host memory, all of
// HBM for KV, which makes the largest batch. Everything runs on the GPU.
#include "schedulers/host_tier.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class AllCpu : public Policy {
 public:
  MemoryPlan plan_memory() override {
    if (!costs().has(Device::gpu)) return Policy::plan_memory();
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(host_tier(costs()), Tier::hbm));
    plan.lm_head_device = Device::gpu;
    pipelines_.fill({.prefetch = Prefetch::half_layer});
    cut_prefill_to_fit(costs(), plan, workload(), pipelines_);
    return plan;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return Placement(costs().has(Device::gpu) ? Device::gpu : Device::cpu);
  }
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::AllCpu, "all-cpu", "HeLM's All-CPU: all weights in host memory, KV in HBM");
