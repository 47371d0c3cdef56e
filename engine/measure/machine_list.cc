#include "engine/measure/machine_list.h"

#include <fmt/core.h>

#include "engine/machine/compute.h"
#include "engine/measure/bench.h"

namespace sluice {

MachineCosts MachineList::load(const std::string& machine, const ModelDimensions& model,
                               const std::string& model_name) {
  if (machine != this_machine) return profile_costs(machine, model);
  const HostUse use = default_host_use();
  if (std::optional<MachineCosts> found = calibrated_costs(model, use)) {
    if (said_.insert(model_name).second) say_if_carried(*found, model_name);
    return std::move(*found);
  }
  MachineCosts costs = analytic_costs(model, probe(use.dtype), "measured: quick probes");
  if (said_.insert(model_name).second) {
    fmt::print(stderr,
               "sluice: {} is not calibrated here, predicting from quick probes ({}); sluice "
               "calibrate --model {} does better\n",
               model_name, rates_text(*probed_), model_name);
  }
  return costs;
}

MachineRates MachineList::probe(DType dtype) {
  if (!probed_) {
    Runtime runtime({.cores = choose_cores(std::nullopt), .scheduler = nullptr});
    constexpr std::uint64_t beyond_caches = std::uint64_t{1} << 40;
    probed_ = MachineProbes(runtime, dtype, beyond_caches).measure();
  }
  return *probed_;
}

}  // namespace sluice
