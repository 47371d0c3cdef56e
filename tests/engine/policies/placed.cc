// A policy that does as it is told: where the sublayers of each phase run, how many layers keep in
// HBM the weights that the GPU multiplies with, and how many their KV, and
// into how many mini-batches prompts are cut.
#include <algorithm>
#include <stdexcept>

#include "schedulers/plugin.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): a fixture

class Placed : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    placements_ = {*Placement::parse(options.take("prefill", "111111")),
                   *Placement::parse(options.take("decode", "111111"))};
    constexpr double most = 1000;
    resident_layers_ =
        static_cast<std::size_t>(options.take_number("resident", 0, most).value_or(0));
    parts_ = static_cast<std::int64_t>(options.take_number("parts", 1, most).value_or(1));
    kv_layers_ = static_cast<std::size_t>(options.take_number("kv", 0, most).value_or(0));
  }
  MemoryPlan plan_memory() override {
    pipelines_[0].mini_batches = parts_;
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(Tier::ddr, Tier::ddr));
    for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
      if (layer < kv_layers_) plan.layers[layer].kv = Tier::hbm;
      if (layer >= resident_layers_) continue;
      for (const Sublayer sublayer : layer_sublayers) {
        if (placements_[1][sublayer] == Device::cpu) continue;
        for (const WeightKind kind : weights_of(sublayer)) plan.layers[layer][kind] = Tier::hbm;
      }
    }
    return plan;
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& /*homes*/) override {
    return placements_.at(static_cast<std::size_t>(shape.phase));
  }

 private:
  std::array<Placement, 2> placements_ = {Placement(Device::cpu), Placement(Device::cpu)};
  std::int64_t parts_ = 1;
  std::size_t resident_layers_ = 0;
  std::size_t kv_layers_ = 0;
};

}  // namespace

SLUICE_POLICY(Placed, "placed", "everything where the options say");
