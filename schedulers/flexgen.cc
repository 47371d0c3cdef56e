// FlexGen's policy, as LIA (section 7) and HeLM (Listings 1 and 2) describe it: percentages of each
// block's weights on GPU, CPU and disk, all sublayers on the GPU but, if wanted, decode's
// attention, weights of the next half layer on their way during the present one.
#include <stdexcept>

#include "perfmodels/hot_experts.h"
#include "schedulers/host_tier.h"
#include "schedulers/percentages.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class FlexGen : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    gpu_percent_ = options.take_number("gpu_percent", 0, 100);
    disk_percent_ = options.take_number("disk_percent", 0, 100).value_or(0);
    if (gpu_percent_.value_or(0) + disk_percent_ > 100)
      throw std::runtime_error("gpu_percent and disk_percent: together more than 100");
    // CPU in decode: how LIA's section 7 compares it; GPU: how HeLM runs it.
    attention_on_cpu_ = options.take_choice("attention", {"cpu", "gpu"}) == "cpu";
    overlap_ = options.take_switch("overlap", true);
  }

  MemoryPlan plan_memory() override {
    if (!costs().has(Device::gpu)) return Policy::plan_memory();
    const Prefetch prefetch = overlap_ ? Prefetch::half_layer : Prefetch::none;
    pipelines_.fill({.mini_batches = 1, .prefetch = prefetch});
    if (gpu_percent_) return parts_that_fit(plan_with(*gpu_percent_));
    parts_that_fit(plan_with(0));
    // As many of the weights as fit: only a few percentages change anything.
    double percent = 100 - disk_percent_;
    while (percent > 0 && !fits(plan_with(percent))) percent -= 0.5;
    return plan_with(percent);
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& /*homes*/) override {
    if (!costs().has(Device::gpu)) return Placement(Device::cpu);
    Placement placement(Device::gpu);
    if (attention_on_cpu_ && shape.phase == Phase::decode && costs().has(Device::cpu))
      placement[Sublayer::qk] = placement[Sublayer::sv] = Device::cpu;
    return placement;
  }

 private:
  MemoryPlan plan_with(double gpu_percent) const {
    const Tier host = host_tier(costs());
    const TierPercentages wanted = {
        .tiers = {Tier::disk, host, Tier::hbm},
        .percents = {disk_percent_, 100 - disk_percent_ - gpu_percent, gpu_percent}};
    LayerHomes homes = LayerHomes::all(host, attention_on_cpu_ ? Tier::ddr : Tier::hbm);
    allocate_by_middle(model(), attention_block, wanted, homes);
    allocate_by_middle(model(), ffn_block, wanted, homes);
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers), homes);
    plan.lm_head = Tier::hbm;
    if (model().num_experts > 0) allocate_experts(gpu_percent, plan);
    return plan;
  }

  /// Of a mixture each expert is a weight of the FFN's line, so that the last ones are in HBM. The
  /// others have one home.
  void allocate_experts(double gpu_percent, MemoryPlan& plan) const {
    const auto num_experts = static_cast<double>(model().num_experts);
    std::vector<std::int32_t> in_hbm;
    for (std::int32_t expert = 0; expert < model().num_experts; ++expert) {
      const double middle = 100 * (expert + 0.5) / num_experts;
      if (middle > 100 - gpu_percent) in_hbm.push_back(expert);
    }
    const bool all = std::ssize(in_hbm) == model().num_experts;
    const Tier outside =
        disk_percent_ > 100 - disk_percent_ - gpu_percent ? Tier::disk : host_tier(costs());
    for (LayerHomes& homes : plan.layers)
      homes[WeightKind::fc1] = homes[WeightKind::fc2] = all ? Tier::hbm : outside;
    if (all || in_hbm.empty()) return;
    plan.hot_experts.assign(plan.layers.size(), in_hbm);
    count_hot_experts(model(), plan);
  }

  /// As few parts of the batch, in both phases, as make their values fit.
  MemoryPlan parts_that_fit(const MemoryPlan& plan) {
    while (!fits(plan) && pipelines_[0].mini_batches < workload().batch) {
      for (Pipeline& pipeline : pipelines_) ++pipeline.mini_batches;
    }
    return plan;
  }

  bool fits(const MemoryPlan& plan) const {
    return fits_hbm(costs(), plan, pipelines_, workload());
  }

  std::optional<double> gpu_percent_;  ///< nothing: as much as fits
  double disk_percent_ = 0;
  bool attention_on_cpu_ = true;
  bool overlap_ = true;
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::FlexGen, "flexgen",
              "FlexGen: percentages of weights by tier, computed on the GPU");
