#include "engine/plan/what_if.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "engine/tables.h"
#include "perfmodels/scaled_model.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

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

std::string flip_text(const char* phase, const char* of, const FlipSearch& flip) {
  const std::string what = fmt::format("flip point of {}: ", phase);
  if (!flip.before) return what + "none, as not even one fits\n";
  if (flip.after) {
    return what + fmt::format("{} -> {} at {} = {}\n", flip.before->to_string(),
                              flip.after->to_string(), of, flip.at);
  }
  return what + fmt::format("none up to {} = {}{}\n", of, flip.at,
                            flip.fits_beyond ? "" : "; more does not fit");
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

}  // namespace

std::string flip_points(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  if (!costs.has(Device::gpu)) return "flip points: no GPU here: none\n";
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
  return flip_text("prefill", "B x L", prefill) + flip_text("decode", "B", decode);
}

std::string what_would_change(CheckedPolicy& policy, const CostModel& costs,
                              const Workload& workload) {
  const Plan now = make_plan(policy, costs, workload);
  TableRows rows = {
      {"with", "prefill", "per token", "latency", "placement of prefill", "of decode"}};
  rows.push_back(row_of("this machine", now, now));
  const auto add = [&](const char* what, const SpeedUp& speed_up) {
    const ScaledModel scaled(costs, speed_up);
    rows.push_back(row_of(what, make_plan(policy, scaled, workload), now));
  };
  if (costs.has(Device::gpu)) add("twice the link to the GPU", {.link = 2});
  if (costs.has(Device::cpu)) {
    add("twice the DDR bandwidth", {.ddr = 2});
    add("twice the CPU's GEMM rate", {.cpu_gemm = 2});
  }
  policy.start(costs, workload);  // the scaled model ends here
  return format_table(rows);
}

std::string slower_than_one_device(const Plan& plan, const CostModel& costs) {
  if (!costs.has(Device::gpu) || !uses(plan, Device::gpu)) return "";
  std::string text;
  double best_s = plan.latency_s();
  for (const char* name : {"cpu-only", "gpu-only"}) {
    const std::optional<double> other_s = latency_of(name, costs, plan.workload);
    if (!other_s || *other_s >= best_s) continue;
    best_s = *other_s;
    text = fmt::format("offloading is slower than not: {} by the cost model, {} takes {}\n",
                       format_seconds(plan.latency_s()), name, format_seconds(*other_s));
  }
  return text;
}

std::string explain_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  std::string text = flip_points(policy, costs, workload);
  text += "\n" + what_would_change(policy, costs, workload);
  const std::string slower = slower_than_one_device(make_plan(policy, costs, workload), costs);
  return slower.empty() ? text : text + "\n" + slower;
}

}  // namespace sluice
