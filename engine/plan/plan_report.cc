#include "engine/plan/plan_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "perfmodels/hot_experts.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string bytes_text(double bytes) {
  return bytes == 0 ? "0" : format_bytes(static_cast<std::uint64_t>(bytes));
}

std::string_view to_string(Prefetch prefetch) {
  switch (prefetch) {
    case Prefetch::none:
      return "none";
    case Prefetch::half_layer:
      return "half_layer";
    case Prefetch::layer:
      return "layer";
  }
  return "?";
}

/// Seconds for which the GPU computes hot experts beside the CPU's others.
double hot_s(const LayerCost& cost) {
  double seconds = 0;
  for (const SublayerCost& sublayer : cost.sublayers) seconds += sublayer.hot_s;
  return seconds;
}

/// Of each layer of a group.
Json json_of(const CountedHotExperts& hot) {
  return {{"number", hot.count()}, {"bytes", hot.bytes()}, {"share", hot.share()}};
}

Json json_of(const LayerGroup& group, std::int64_t iterations) {
  Json json;
  json["iterations"] = iterations;
  json["num_layers"] = group.num_layers;
  json["sub_batch"] = group.sub_batch;
  json["batch"] = group.shape.batch;
  json["placement"] = group.cost.placement.to_string();
  Json homes;
  for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
    const auto weight = static_cast<WeightKind>(kind);
    homes[std::string(to_string(weight))] = to_string(group.homes[weight]);
  }
  homes["kv"] = to_string(group.homes.kv);
  json["homes"] = std::move(homes);
  if (const CountedHotExperts* hot = hot_experts(group.homes)) {
    json["hot_experts"] = json_of(*hot);
    json["hot_experts"]["gpu_s"] = hot_s(group.cost);
  }
  Json sublayers = Json::array();
  for (std::size_t i = 0; i < layer_sublayers.size(); ++i) {
    const SublayerCost& cost = group.cost.sublayers[i];
    sublayers.push_back({{"sublayer", to_string(layer_sublayers[i])},
                         {"device", to_string(group.cost.placement[layer_sublayers[i]])},
                         {"load_s", cost.load_s()},
                         {"compute_s", cost.compute_s},
                         {"store_s", cost.store_s}});
  }
  json["sublayers"] = std::move(sublayers);
  return json;
}

std::size_t most_sub_batches(const PhasePlan& phase) {
  std::size_t most = 0;
  for (const IterationGroup& group : phase.groups) most = std::max(most, group.num_sub_batches);
  return most;
}

Json json_of(const PhasePlan& phase) {
  const BusyTimes busy = phase.busy();
  Json json;
  json["placement"] = phase.main_group().cost.placement.to_string();
  json["sub_batches"] = most_sub_batches(phase);
  json["mini_batches"] = phase.pipeline.mini_batches;
  json["prefetch"] = to_string(phase.pipeline.prefetch);
  json["iterations"] = phase.iterations();
  json["iteration_s"] = phase.mean_iteration_s();
  // Of all its iterations:
  json["load_s"] = busy.to_gpu_s;
  json["cpu_s"] = busy.cpu_s;
  json["gpu_s"] = busy.gpu_s;
  json["store_s"] = busy.to_cpu_s;
  json["disk_s"] = busy.disk_s;
  Json layers = Json::array();
  for (const IterationGroup& group : phase.groups) {
    for (const LayerGroup& alike : group.layers) layers.push_back(json_of(alike, group.count));
  }
  json["layers"] = std::move(layers);
  return json;
}

/// What was asked for.
Json name_of(const PlanPoint& point) {
  Json json;
  json["model"] = point.model;
  json["machine"] = point.machine;
  json["policy"] = point.policy;
  json["batch"] = point.workload.batch;
  json["input_tokens"] = point.workload.input_tokens;
  json["output_tokens"] = point.workload.output_tokens;
  return json;
}

BusyTimes busy_of(const Plan& plan) {
  BusyTimes busy = plan.prefill.busy();
  busy += plan.decode.busy();
  return busy;
}

Json json_of(const PlanPoint& point) {
  Json json = name_of(point);
  if (!point.plan) {
    json["problem"] = point.problem;
    return json;
  }
  const Plan& plan = *point.plan;
  json["prefill"] = json_of(plan.prefill);
  json["decode"] = json_of(plan.decode);
  json["resident_layers"] = plan.memory.resident_layers();
  json["weights_stay"] = plan.weights_stay;
  Json bytes;
  for (const Tier tier : all_tiers)
    bytes[std::string(to_string(tier))] = plan.footprint.total(tier);
  json["bytes"] = std::move(bytes);
  json["ttft_s"] = plan.ttft_s();
  json["tpot_s"] = plan.tpot_s;
  json["latency_s"] = plan.latency_s();
  json["tokens_per_s"] = plan.tokens_per_s();
  put_running_costs(point, plan.latency_s(), busy_of(plan), json);
  const auto [resource, bound_s] = plan.lower_bound();
  json["lower_bound_s"] = bound_s;
  json["binding_resource"] = resource;
  json["lower_bound_share"] = bound_s / plan.latency_s();
  json["fits"] = plan.shortage.empty();
  if (!plan.shortage.empty()) json["shortage"] = plan.shortage;
  return json;
}

/// The figures of one line: what a table and CSV show.
Json flat_json_of(const PlanPoint& point) {
  Json json = name_of(point);
  const bool known = point.plan.has_value();
  const auto value = [&](auto figure) { return known ? Json(figure(*point.plan)) : Json(); };
  const auto placement = [&](const PhasePlan Plan::*phase) {
    return value(
        [&](const Plan& plan) { return (plan.*phase).main_group().cost.placement.to_string(); });
  };
  json["prefill_placement"] = placement(&Plan::prefill);
  json["decode_placement"] = placement(&Plan::decode);
  json["resident_layers"] = value([](const Plan& plan) { return plan.memory.resident_layers(); });
  json["ttft_s"] = value([](const Plan& plan) { return plan.ttft_s(); });
  json["tpot_s"] = value([](const Plan& plan) { return plan.tpot_s; });
  json["latency_s"] = value([](const Plan& plan) { return plan.latency_s(); });
  json["tokens_per_s"] = value([](const Plan& plan) { return plan.tokens_per_s(); });
  json["lower_bound_s"] = value([](const Plan& plan) { return plan.lower_bound().second; });
  json["binding_resource"] = value([](const Plan& plan) { return plan.lower_bound().first; });
  for (const Tier tier : all_tiers)
    json[fmt::format("{}_bytes", to_string(tier))] =
        value([&](const Plan& plan) { return plan.footprint.total(tier); });
  Json running;
  if (known) put_running_costs(point, point.plan->latency_s(), busy_of(*point.plan), running);
  for (const char* key : {"joules_per_token", "usd_per_million_tokens"})
    json[key] = known ? running[key] : Json();
  json["problem"] = point.plan ? point.plan->shortage : point.problem;
  return json;
}

TableRows rows_of(const std::vector<PlanPoint>& points) {
  TableRows rows = {{"batch", "input", "output", "model", "machine", "policy", "prefill", "decode",
                     "resident", "TTFT", "per token", "tokens/s", "latency", "bound by", "busy",
                     "note"}};
  for (const PlanPoint& point : points) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("{}", point.workload.batch),
           fmt::format("{}", point.workload.input_tokens),
           fmt::format("{}", point.workload.output_tokens),
           point.model,
           point.machine,
           point.policy};
    if (!point.plan) {
      row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-", "-", "-", point.problem});
      continue;
    }
    const Plan& plan = *point.plan;
    const auto [resource, bound_s] = plan.lower_bound();
    row.insert(row.end(),
               {plan.prefill.main_group().cost.placement.to_string(),
                plan.decode.main_group().cost.placement.to_string(),
                fmt::format("{}", plan.memory.resident_layers()), seconds_text(plan.ttft_s()),
                seconds_text(plan.tpot_s), rate_text(plan.tokens_per_s()),
                seconds_text(plan.latency_s()), std::string(resource),
                fmt::format("{:.0f} %", 100 * bound_s / plan.latency_s()), plan.shortage});
  }
  const bool notes = std::any_of(rows.begin() + 1, rows.end(),
                                 [](const auto& row) { return !row.back().empty(); });
  if (!notes) {
    for (std::vector<std::string>& row : rows) row.pop_back();
  }
  return rows;
}

std::string homes_text(const LayerHomes& homes) {
  std::string text;
  for (const Tier tier : all_tiers) {
    std::string kinds;
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      if (homes[weight] == tier)
        kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", to_string(weight));
    }
    if (kinds.empty()) continue;
    const bool all = homes.weights == LayerHomes::all(tier, homes.kv).weights;
    text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", all ? "all weights" : kinds,
                        to_string(tier));
  }
  return text + fmt::format("; KV in {}", to_string(homes.kv));
}

std::string hot_text(const LayerGroup& group) {
  const CountedHotExperts* hot = hot_experts(group.homes);
  if (hot == nullptr) return "";
  const double gpu_s = hot_s(group.cost);
  return fmt::format(
      "    hot: {} experts a layer in hbm, {}, which catch {:.1f} % of choices{}\n", hot->count(),
      bytes_text(hot->bytes()), 100 * hot->share(),
      gpu_s > 0 ? fmt::format("; the GPU computes them meanwhile, {}", seconds_text(gpu_s)) : "");
}

std::string layers_text(const LayerGroup& group, bool several_sub_batches) {
  return fmt::format("  {}{} layers, batch {}, placement {} ({})\n{}",
                     several_sub_batches ? fmt::format("sub-batch {}: ", group.sub_batch) : "",
                     group.num_layers, group.shape.batch, group.cost.placement.to_string(),
                     homes_text(group.homes), hot_text(group));
}

std::string sublayer_table(const LayerGroup& group) {
  TableRows rows = {{"   ", "sublayer", "on", "load", "compute", "store"}};
  for (std::size_t i = 0; i < layer_sublayers.size(); ++i) {
    const SublayerCost& cost = group.cost.sublayers[i];
    rows.push_back({"   ", std::string(to_string(layer_sublayers[i])),
                    std::string(to_string(group.cost.placement[layer_sublayers[i]])),
                    seconds_text(cost.load_s()), seconds_text(cost.compute_s),
                    seconds_text(cost.store_s)});
  }
  return format_table(rows);
}

double seconds_of(const IterationGroup& group) {
  return static_cast<double>(group.count) * group.estimate.seconds;
}

/// Whether no more than `most` groups take longer than this one.
bool is_among_longest(const IterationGroup& group, const PhasePlan& phase, std::int64_t most) {
  return std::count_if(phase.groups.begin(), phase.groups.end(), [&](const IterationGroup& other) {
           return seconds_of(other) > seconds_of(group);
         }) < most;
}

/// Of iterations that differ, those that take longest are shown, and the very longest at length.
std::string describe(const char* name, const PhasePlan& phase) {
  std::string text;
  const auto longest =
      std::max_element(phase.groups.begin(), phase.groups.end(),
                       [](const auto& a, const auto& b) { return seconds_of(a) < seconds_of(b); });
  constexpr std::int64_t most_shown = 6;
  double others_s = 0;
  for (const IterationGroup& group : phase.groups) {
    if (!is_among_longest(group, phase, most_shown)) {
      others_s += seconds_of(group);
      continue;
    }
    const BusyTimes& busy = group.estimate.busy;
    text += fmt::format(
        "{}: {} x {} (CPU busy {}, GPU {}, link to GPU {}, link to CPU {}){}\n", name, group.count,
        seconds_text(group.estimate.seconds), seconds_text(busy.cpu_s), seconds_text(busy.gpu_s),
        seconds_text(busy.to_gpu_s),
        seconds_text(busy.to_cpu_s) +
            (busy.disk_s > 0 ? fmt::format(", disk {}", seconds_text(busy.disk_s)) : ""),
        phase.pipeline.mini_batches > 1
            ? fmt::format(", in {} mini-batches", phase.pipeline.mini_batches)
            : "");
    for (const LayerGroup& layers : group.layers) {
      text += layers_text(layers, group.num_sub_batches > 1);
      if (&group == &*longest) text += sublayer_table(layers);
    }
  }
  if (others_s > 0)
    text += fmt::format("{}: other iterations, {} together (--json lists them)\n", name,
                        seconds_text(others_s));
  return text;
}

std::string tier_table(const Footprint& footprint) {
  TableRows rows = {{"tier", "weights", "KV", "staging", "activations", "total"}};
  for (const Tier tier : all_tiers) {
    if (footprint.total(tier) == 0) continue;
    rows.push_back({std::string(to_string(tier)), bytes_text(footprint.weights[tier]),
                    bytes_text(footprint.kv[tier]), bytes_text(footprint.staging[tier]),
                    bytes_text(footprint.activations[tier]), bytes_text(footprint.total(tier))});
  }
  return format_table(rows);
}

}  // namespace

Json plan_json(const PlanPoint& point) { return json_of(point); }

void put_running_costs(const PlanPoint& point, double latency_s, const BusyTimes& busy,
                       Json& json) {
  const double tokens = static_cast<double>(point.workload.batch * point.workload.output_tokens);
  const auto put = [&](const char* key, const std::optional<double>& total, double scale) {
    json[key] = total ? Json(*total * scale) : Json();
  };
  const std::optional<double> energy_j = point.running_costs.energy_j(latency_s, busy);
  put("energy_j", energy_j, 1);
  put("mean_watts", energy_j, 1 / latency_s);
  put("joules_per_token", energy_j, 1 / tokens);
  put("usd_per_million_tokens", point.running_costs.cost_usd(latency_s), 1e6 / tokens);
  if (!point.running_costs.problem().empty())
    json["running_costs_problem"] = point.running_costs.problem();
}

std::string running_costs_text(const Json& json) {
  std::vector<std::string> parts;
  if (json["energy_j"].is_number()) {
    parts.push_back(fmt::format("{} J per token ({} W on average)",
                                rate_text(json["joules_per_token"].get<double>()),
                                rate_text(json["mean_watts"].get<double>())));
  }
  if (json["usd_per_million_tokens"].is_number()) {
    parts.push_back(fmt::format("${} per million tokens",
                                rate_text(json["usd_per_million_tokens"].get<double>())));
  }
  if (json.contains("running_costs_problem")) {
    parts.push_back(fmt::format("{} not known: {}",
                                parts.empty() ? "energy and price are" : "the price is",
                                json["running_costs_problem"].get<std::string>()));
  }
  return fmt::format("{}\n", fmt::join(parts, ", "));
}

std::string rate_text(double rate) {
  return rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string format_plans(OutputFormat format, const std::vector<PlanPoint>& points) {
  if (format == OutputFormat::table) return format_table(rows_of(points));
  if (format == OutputFormat::markdown) return format_markdown(rows_of(points));
  Json objects = Json::array();
  for (const PlanPoint& point : points)
    objects.push_back(format == OutputFormat::json ? json_of(point) : flat_json_of(point));
  return format_objects(format, objects);
}

std::string describe_plan(const PlanPoint& point) {
  const Plan& plan = *point.plan;
  const auto [resource, bound_s] = plan.lower_bound();
  std::string text = fmt::format(
      "{} on {} with {}: batch {}, {} tokens in, {} out; {} of {} layers resident\n\n", point.model,
      point.machine, point.policy, point.workload.batch, point.workload.input_tokens,
      point.workload.output_tokens, plan.memory.resident_layers(), plan.memory.layers.size());
  text += describe("prefill", plan.prefill) + "\n";
  text += describe("decode", plan.decode) + "\n";
  text += tier_table(plan.footprint) + "\n";
  if (plan.weights_stay) text += "hbm has room for all weights that come there: they cross once\n";
  text += fmt::format(
      "time to first token {}, per token {}, {} tokens/s, latency {}\n"
      "the busiest part ({}) works {} of that, {:.0f} %; no order of the same work takes less\n",
      seconds_text(plan.ttft_s()), seconds_text(plan.tpot_s), rate_text(plan.tokens_per_s()),
      seconds_text(plan.latency_s()), resource, seconds_text(bound_s),
      100 * bound_s / plan.latency_s());
  Json running;
  put_running_costs(point, plan.latency_s(), busy_of(plan), running);
  text += running_costs_text(running);
  if (!plan.shortage.empty())
    text += fmt::format("this machine is too small, and the figures are for a larger one: {}\n",
                        plan.shortage);
  return text;
}

}  // namespace sluice
