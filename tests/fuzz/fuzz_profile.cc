// Any bytes as a machine's profile: refused with an Error of one line, or costs that can be asked
// for: numbers of seconds, none below 0.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "perfmodels/analytic_model.h"
#include "perfmodels/cpu_plan_cost.h"
#include "perfmodels/profile.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

sluice::ModelDimensions model() {
  sluice::ModelDimensions sizes;
  sizes.num_layers = 4;
  sizes.hidden_size = sizes.embed_size = 64;
  sizes.num_heads = 4;
  sizes.num_kv_heads = 2;
  sizes.head_dim = 16;
  sizes.ffn_size = 128;
  sizes.vocab_size = 1000;
  return sizes;
}

/// What a policy asks.
void ask(const sluice::CostModel& costs) {
  using sluice::Device;
  using sluice::Phase;
  using sluice::Tier;
  for (const Device device : {Device::cpu, Device::gpu}) {
    if (!costs.has(device)) continue;
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const auto shape = phase == Phase::prefill ? sluice::BatchShape::prefill(4, 64)
                                                 : sluice::BatchShape::decode(4, 64);
      for (const auto sublayer : {sluice::Sublayer::qkv, sluice::Sublayer::attention})
        require(costs.compute_s(device, sublayer, shape, Tier::ddr) >= 0);
    }
    require(costs.lm_head_s(device, 4) >= 0);
    require(costs.task_overhead_s(device, 1) >= 0);
  }
  for (const Tier tier : {Tier::hbm, Tier::ddr, Tier::cxl, Tier::disk}) costs.capacity_bytes(tier);
  if (costs.has(Device::gpu)) require(costs.transfer_s(Tier::ddr, Tier::hbm, 1e6) >= 0);
}

/// What a plan for the cores is judged by.
void plan_cores(const sluice::MachineProfile& profile) {
  if (!profile.cpu_cores) return;
  const sluice::Topology& topology = profile.cpu_cores->topology.value;
  const sluice::CpuPlanCost cost(topology,
                                 core_rates(profile, model(), sluice::BatchShape::decode(4, 60)),
                                 plan_work(model(), {{.rows = 4, .context = 60}}));
  require(cost(sluice::static_plan(topology.cores(), topology).decode) > 0);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto profile = sluice::parse_profile(text, "machine.json");
    ask(sluice::AnalyticModel(profile, model()));
    plan_cores(profile);
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
  return 0;
}
