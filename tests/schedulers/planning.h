#pragma once

#include <map>
#include <string>

#include "engine/machine/compute.h"
#include "engine/plan/planner.h"
#include "models/model.h"
#include "perfmodels/analytic_model.h"
#include "schedulers/loader.h"

namespace sluice::test {

inline ModelDimensions dimensions_of(const std::string& shape, double weight_bits = 16) {
  ModelDimensions dimensions = model_dimensions(find_shape(shape), DType::bf16);
  dimensions.weight_bits = weight_bits;
  return dimensions;
}

/// A shipped policy with a model on a profile.
struct Planned {
  Planned(const std::string& policy_name, const std::map<std::string, std::string>& options,
          const std::string& machine, const ModelDimensions& model)
      : costs(load_profile(machine), model), policy(policy_name, options, {SLUICE_SHIPPED_DIR}) {}
  Planned(const std::string& policy_name, const std::map<std::string, std::string>& options,
          const std::string& machine, const std::string& shape, double weight_bits = 16)
      : Planned(policy_name, options, machine, dimensions_of(shape, weight_bits)) {}

  Plan plan(const Workload& workload) { return make_plan(policy.policy(), costs, workload); }
  MemoryPlan memory(const Workload& workload) {
    policy.policy().start(costs, workload);
    return policy.policy().plan_memory(CapacityCheck::hbm_only);
  }
  /// Of a layer whose weights and KV are in DDR.
  std::string place(const BatchShape& shape) {
    policy.policy().start(
        costs, {.batch = shape.batch, .input_tokens = shape.context, .output_tokens = 1});
    return policy.policy().place(0, shape, LayerHomes::all(Tier::ddr, Tier::ddr)).to_string();
  }

  AnalyticModel costs;
  LoadedPolicy policy;
};

/// Whether the run fits HBM.
inline bool fits(Planned& planned, const Workload& workload) {
  try {
    planned.memory(workload);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Percent of all layers' weights on a tier.
inline double percent_in(const ModelDimensions& model, const MemoryPlan& memory, Tier tier) {
  double here = 0;
  double all = 0;
  for (const LayerHomes& homes : memory.layers) {
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      const double elements = weight_elements(model, weight);
      all += elements;
      if (homes[weight] == tier) here += elements;
    }
  }
  return 100 * here / all;
}

}  // namespace sluice::test
