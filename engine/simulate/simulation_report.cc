#include "engine/simulate/simulation_report.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

void put_times(const SimulatedPhase& phase, Json& json) {
  json["iterations"] = phase.iterations;
  json["iteration_s"] =
      phase.iterations > 0 ? phase.seconds / static_cast<double>(phase.iterations) : 0;
  json["load_s"] = phase.busy.to_gpu_s;
  json["cpu_s"] = phase.busy.cpu_s;
  json["gpu_s"] = phase.busy.gpu_s;
  json["store_s"] = phase.busy.to_cpu_s;
  json["disk_s"] = phase.busy.disk_s;
}

}  // namespace

std::string simulation_json(const PlanPoint& point, const Simulation& simulation,
                            const std::optional<CpuPlanReport>& cpu_plan) {
  Json json = plan_json(point);
  if (cpu_plan) json["cpu_plan"] = cpu_plan_report_json(*cpu_plan);
  put_times(simulation.prefill, json["prefill"]);
  put_times(simulation.decode, json["decode"]);
  for (const Tier tier : all_tiers)
    json["bytes"][std::string(to_string(tier))] = simulation.peak_bytes[tier];
  json["fits"] = simulation.shortage.empty();
  if (!simulation.shortage.empty()) json["shortage"] = simulation.shortage;
  json["ttft_s"] = simulation.ttft_s();
  json["tpot_s"] = simulation.tpot_s;
  json["latency_s"] = simulation.latency_s();
  json["tokens_per_s"] = simulation.tokens_per_s();
  const double latency_s = simulation.latency_s();
  const BusyTimes busy = simulation.busy();
  put_running_costs(point, latency_s, busy, json);
  json["lower_bound_share"] = simulation.plan.lower_bound().second / latency_s;
  json["plan_latency_s"] = simulation.plan.latency_s();
  json["simulated_s"] = latency_s;
  json["wall_s"] = simulation.wall_s;
  json["tasks"] = simulation.num_tasks;
  for (const auto& [part, busy_s] : busy.parts())
    json["busy_share"][std::string(part)] = busy_s / latency_s;
  json["bytes_moved"] = {{"link to gpu", simulation.to_gpu_bytes},
                         {"link to cpu", simulation.to_cpu_bytes},
                         {"disk", simulation.disk_bytes}};
  json["overlap_s"] = simulation.overlap_s;
  return json_text(json, 2) + "\n";
}

}  // namespace sluice
