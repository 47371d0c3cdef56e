#pragma once

#include <cstddef>
#include <vector>

#include "schedulers/policy.h"

namespace sluice {

/// Weights in HBM and all KV in DDR: the GPU computes everything but decode attention, which is the
/// CPU's (NEO section 3.1, both strawmen). Without one of the devices, everything on the other one.
class AttentionOnCpu : public Policy {
 public:
  MemoryPlan plan_memory() override {
    if (!costs().has(Device::gpu) || !costs().has(Device::cpu)) return Policy::plan_memory();
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(Tier::hbm, Tier::ddr));
    plan.lm_head = Tier::hbm;
    std::int64_t& prompts_at_once = pipelines_[0].requests_at_once;
    prompts_at_once = workload().batch;
    while (prompts_at_once > 1 && !fits_hbm(costs(), plan, pipelines_, workload()))
      --prompts_at_once;
    return plan;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& /*homes*/) override {
    Placement placement(costs().has(Device::gpu) ? Device::gpu : Device::cpu);
    if (shape.phase == Phase::decode && costs().has(Device::cpu))
      placement[Sublayer::qk] = placement[Sublayer::sv] = Device::cpu;
    return placement;
  }

  IterationPlan plan_iteration(const std::vector<RequestView>& requests) final {
    std::vector<RequestView> running;
    std::int64_t prompts = 0;
    for (const RequestView& request : requests) {
      const bool is_prompt = request.prompt_tokens_left > 0;
      if (is_prompt && pipelines_[0].requests_at_once > 0 &&
          ++prompts > pipelines_[0].requests_at_once)
        continue;
      running.push_back(request);
    }
    return group(running);
  }

 protected:
  /// Who runs with whom, of no more prompts than HBM has room for at once.
  virtual IterationPlan group(const std::vector<RequestView>& requests) = 0;
};

}  // namespace sluice
