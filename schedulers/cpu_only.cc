#include "schedulers/plugin.h"

namespace sluice {
namespace {

/// Everything in DDR and on the CPU, whatever else the machine has.
class CpuOnly : public Policy {
 public:
  MemoryPlan plan_memory() override {
    return {.layers = std::vector<LayerHomes>(static_cast<std::size_t>(model().num_layers),
                                              LayerHomes::all(Tier::ddr, Tier::ddr)),
            .embedding = Tier::ddr,
            .lm_head = Tier::ddr,
            .uses_gpu = false};
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return Placement(Device::cpu);
  }
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::CpuOnly, "cpu-only", "everything in DDR and on the CPU");
