// A policy for one device, its option `device`, that keeps the weights of every other layer on a
// disk, and what `also` says.
#include "schedulers/plugin.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): a fixture

class HalfOnDisk : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    also_ = options.take_choice("also", {"nothing", "embedding", "head"});
    device_ = options.take_choice("device", {"cpu", "gpu"}) == "cpu" ? Device::cpu : Device::gpu;
  }
  MemoryPlan plan_memory() override {
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(Tier::ddr, device_ == Device::cpu ? Tier::ddr : Tier::hbm));
    for (std::size_t layer = 0; layer < plan.layers.size(); layer += 2)
      plan.layers[layer] = LayerHomes::all(Tier::disk, plan.layers[layer].kv);
    if (also_ == "embedding") plan.embedding = Tier::disk;
    if (also_ == "head") plan.lm_head = Tier::disk;
    plan.lm_head_device = device_;
    return plan;
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return Placement(device_);
  }

 private:
  Device device_ = Device::cpu;
  std::string also_;
};

}  // namespace

SLUICE_POLICY(HalfOnDisk, "half-on-disk", "every other layer on a disk");
