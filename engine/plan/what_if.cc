#include "engine/plan/what_if.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "engine/console/tables.h"
#include "perfmodels/scaled_model.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t most_batch = 4096;
constexpr std::int64_t most_tokens = 65536;

/// A layer that is not resident, the first one otherwise.
std::size_t main_layer(const MemoryPlan& memory) {
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    if (!memory.layers[layer].resident()) return layer;
  }
  return 0;
}

/// Where a search from 1 upwards has ended.
struct FlipSearch {
  std::int64_t at = 0;              ///< the first change; without one the last that is as at 1
  std::optional<Placement> before;  ///< at 1: nothing where not even that fits
  std::optional<Placement> after;   ///< nothing: no change, or it does not fit
  bool fits_beyond = true;
};

/// The first change of what `place` says, which is nothing where it does not fit.
template <typename Place>
FlipSearch first_flip(std::int64_t most, const Place& place) {
  const std::optional<Placement> at_one = place(1);
  if (!at_one) return {.before = std::nullopt, .after = std::nullopt, .fits_beyond = false};
  std::int64_t low = 1;
  std::int64_t high = 2;
  while (high <= most && place(high) == at_one) {
    low = high;
    high *= 2;
  }
  if (high > most) return {.at = most, .before = at_one, .after = std::nullopt};
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (place(middle) == at_one ? low : high) = middle;
  }
  const std::optional<Placement> after = place(high);
  return {after ? high : low, at_one, after, after.has_value()};
}

/// Where a policy puts a layer that is not resident; nothing where such a workload does not fit.
std::optional<Placement> placement_at(CheckedPolicy& policy, const CostModel& costs,
                                      const Workload& workload, const BatchShape& shape) {
  try {
    policy.start(costs, workload);
    const MemoryPlan memory = policy.plan_memory(CapacityCheck::hbm_only);
    const std::size_t layer = main_layer(memory);
    return policy.place(static_cast<std::int64_t>(layer), shape, memory.layers[layer]);
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// What is searched, and how it ended.
struct FlipPoint {
  const char* phase;
  const char* of;
  FlipSearch search;
};

/// Empty without a GPU.
std::vector<FlipPoint> find_flip_points(CheckedPolicy& policy, const CostModel& costs,
                                        const Workload& workload) {
  if (!costs.has(Device::gpu)) return {};
  const auto prefill = first_flip(most_tokens, [&](std::int64_t tokens) {
    return placement_at(policy, costs, {1, tokens, workload.output_tokens},
                        BatchShape::prefill(1, tokens));
  });
  const auto decode = first_flip(most_batch, [&](std::int64_t batch) {
    return placement_at(
        policy, costs, {batch, workload.input_tokens, workload.output_tokens},
        BatchShape::decode(batch, workload.input_tokens + (workload.output_tokens + 1) / 2));
  });
  policy.start(costs, workload);
  return {{"prefill", "B x L", prefill}, {"decode", "B", decode}};
}

std::string flip_text(const FlipPoint& point) {
  const FlipSearch& flip = point.search;
  const std::string what = fmt::format("flip point of {}: ", point.phase);
  if (!flip.before) return what + "none, as not even one fits\n";
  if (flip.after) {
    return what + fmt::format("{} -> {} at {} = {}\n", flip.before->to_string(),
                              flip.after->to_string(), point.of, flip.at);
  }
  return what + fmt::format("none up to {} = {}{}\n", point.of, flip.at,
                            flip.fits_beyond ? "" : "; more does not fit");
}

Json flip_json(const FlipSearch& flip) {
  const auto text = [](const std::optional<Placement>& placement) {
    return placement ? Json(placement->to_string()) : Json();
  };
  return {{"from", text(flip.before)},
          {"to", text(flip.after)},
          {"at", flip.after ? Json(flip.at) : Json()},
          {"searched_up_to", flip.at},
          {"more_fits", flip.fits_beyond}};
}

/// A plan for a machine of which one part is faster.
struct WhatIf {
  const char* with;
  Plan plan;
};

/// The machine as it is comes first.
std::vector<WhatIf> plans_with_faster_parts(CheckedPolicy& policy, const CostModel& costs,
                                            const Workload& workload) {
  std::vector<WhatIf> plans = {{"this machine", make_plan(policy, costs, workload)}};
  const auto add = [&](const char* with, const SpeedUp& speed_up) {
    const ScaledModel scaled(costs, speed_up);
    plans.push_back({with, make_plan(policy, scaled, workload)});
  };
  if (costs.has(Device::gpu)) add("twice the link to the GPU", {.link = 2});
  if (costs.has(Device::cpu)) {
    add("twice the DDR bandwidth", {.ddr = 2});
    add("twice the CPU's GEMM rate", {.cpu_gemm = 2});
  }
  policy.start(costs, workload);  // the scaled model ends here
  return plans;
}

std::string changed_text(const std::string& before, const std::string& after) {
  return before == after ? after : before + " -> " + after;
}

std::string placement_of(const PhasePlan& phase) {
  return phase.main_group().cost.placement.to_string();
}

std::vector<std::string> row_of(const char* what, const Plan& plan, const Plan& now) {
  const auto gain = [](double before, double after) {
    return fmt::format("{} (x {:.2f})", format_seconds(after), before / after);
  };
  return {what,
          gain(now.prefill.seconds(), plan.prefill.seconds()),
          gain(now.tpot_s, plan.tpot_s),
          gain(now.latency_s(), plan.latency_s()),
          changed_text(placement_of(now.prefill), placement_of(plan.prefill)),
          changed_text(placement_of(now.decode), placement_of(plan.decode))};
}

/// Nothing where it does not fit.
std::optional<double> latency_of(const char* policy_name, const CostModel& costs,
                                 const Workload& workload) {
  try {
    LoadedPolicy policy(policy_name, {});
    const Plan plan = make_plan(policy.policy(), costs, workload);
    if (!plan.shortage.empty()) return std::nullopt;
    return plan.latency_s();
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool uses(const Plan& plan, Device device) {
  for (const PhasePlan* phase : {&plan.prefill, &plan.decode}) {
    for (const IterationGroup& group : phase->groups) {
      for (const LayerGroup& layers : group.layers) {
        if (layers.cost.placement.uses(device)) return true;
      }
    }
  }
  return false;
}

struct OneDevice {
  const char* policy;
  double latency_s;
};

/// The fastest that is faster than this plan, if there is one and the plan shares the work.
std::optional<OneDevice> faster_single_device(const Plan& plan, const CostModel& costs) {
  if (!costs.has(Device::gpu) || !uses(plan, Device::gpu)) return std::nullopt;
  std::optional<OneDevice> best;
  for (const char* name : {"cpu-only", "gpu-only"}) {
    const std::optional<double> other_s = latency_of(name, costs, plan.workload);
    if (other_s && *other_s < (best ? best->latency_s : plan.latency_s())) best = {name, *other_s};
  }
  return best;
}

}  // namespace

std::string flip_points(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  if (!costs.has(Device::gpu)) return "flip points: no GPU here: none\n";
  std::string text;
  for (const FlipPoint& point : find_flip_points(policy, costs, workload)) text += flip_text(point);
  return text;
}

std::string what_would_change(CheckedPolicy& policy, const CostModel& costs,
                              const Workload& workload) {
  const std::vector<WhatIf> plans = plans_with_faster_parts(policy, costs, workload);
  TableRows rows = {
      {"with", "prefill", "per token", "latency", "placement of prefill", "of decode"}};
  for (const WhatIf& each : plans) rows.push_back(row_of(each.with, each.plan, plans.front().plan));
  return format_table(rows);
}

std::string slower_than_one_device(const Plan& plan, const CostModel& costs) {
  const std::optional<OneDevice> faster = faster_single_device(plan, costs);
  if (!faster) return "";
  return fmt::format("offloading is slower than not: {} by the cost model, {} takes {}\n",
                     format_seconds(plan.latency_s()), faster->policy,
                     format_seconds(faster->latency_s));
}

std::string explain_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  std::string text = flip_points(policy, costs, workload);
  text += "\n" + what_would_change(policy, costs, workload);
  const std::string slower = slower_than_one_device(make_plan(policy, costs, workload), costs);
  return slower.empty() ? text : text + "\n" + slower;
}

Json explain_plan_json(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  Json json;
  json["flip_points"] = Json::object();
  for (const FlipPoint& point : find_flip_points(policy, costs, workload))
    json["flip_points"][point.phase] = flip_json(point.search);
  const std::vector<WhatIf> plans = plans_with_faster_parts(policy, costs, workload);
  for (const WhatIf& each : plans) {
    json["what_if"].push_back({{"with", each.with},
                               {"prefill_s", each.plan.prefill.seconds()},
                               {"tpot_s", each.plan.tpot_s},
                               {"latency_s", each.plan.latency_s()},
                               {"prefill_placement", placement_of(each.plan.prefill)},
                               {"decode_placement", placement_of(each.plan.decode)}});
  }
  json["faster_on_one_device"] = Json();
  if (const auto faster = faster_single_device(plans.front().plan, costs))
    json["faster_on_one_device"] = {{"policy", faster->policy}, {"latency_s", faster->latency_s}};
  return json;
}

}  // namespace sluice
