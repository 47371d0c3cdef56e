#include "perfmodels/cpu_plan_cost.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::int64_t rounds_per_layer = 6;
constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double micro = 1e-6;

}  // namespace

CoreRates core_rates(const MachineProfile& profile, std::int64_t rows) {
  if (!profile.cpu_cores)
    throw Error(
        "the profile {} does not describe its CPU's cores; add cpu.topology, "
        "cpu.node_bandwidth_gb_per_s, cpu.remote_bandwidth_gb_per_s and cpu.round_us",
        profile.name);
  const CoresProfile& cores = *profile.cpu_cores;
  CoreRates rates = {
      .node_bandwidth = cores.node_bandwidth_gb_per_s.value.scaled(giga),
      .remote_bandwidth = cores.remote_bandwidth_gb_per_s.value * giga,
      .round_s = cores.round_us.value.scaled(micro),
      .core_flop_per_s = profile.cpu.gemm_tflop_per_s.value.at(static_cast<double>(rows)) * tera /
                         profile.cpu.cores->value};
  for (const CoresProfile::Contention& each : cores.contention)
    rates.contention.push_back(
        {.cores = each.cores, .bandwidth = each.bandwidth_gb_per_s.value.scaled(giga)});
  return rates;
}

PlanWork plan_work(const ModelDimensions& model, const std::vector<SequenceWork>& sequences) {
  PlanWork work{.rounds = model.num_layers * rounds_per_layer + 1};
  for (const StageWork& stage : iteration_work(model, sequences)) {
    work.bytes += stage.bytes;
    work.flops += stage.flops;
  }
  return work;
}

CpuPlanCost::CpuPlanCost(const Topology& topology, CoreRates rates, const PlanWork& work)
    : rates_(std::move(rates)), work_(work) {
  std::set<int> nodes;
  int place = 0;
  for (const int core : topology.cores()) {
    const int node = topology.numa_node_of(core);
    node_of_[core] = node;
    place_of_[core] = place++;
    nodes.insert(node);
  }
  num_nodes_ = std::max<int>(1, static_cast<int>(nodes.size()));
}

CpuPlanCost::Load CpuPlanCost::load_of(const CpuPhasePlan& plan) const {
  Load load{.on_node = {}, .sharing = std::vector<Counts>(rates_.contention.size())};
  for (const CpuGroup& group : plan.groups) {
    for (const int core : group.cores) {
      ++load.on_node[node_of_.at(core)];
      for (std::size_t i = 0; i < load.sharing.size(); ++i)
        ++load.sharing[i][place_of_.at(core) / rates_.contention[i].cores];
    }
  }
  return load;
}

double CpuPlanCost::bandwidth(const Load& load, const CpuGroup& group) const {
  const double remote_share = static_cast<double>(num_nodes_ - 1) / num_nodes_;
  double sum = 0;
  for (const int core : group.cores) {
    const int node = node_of_.at(core);
    const double active = load.on_node.at(node);
    double limit = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < load.sharing.size(); ++i) {
      const double together = load.sharing[i].at(place_of_.at(core) / rates_.contention[i].cores);
      limit = std::min(limit, rates_.contention[i].bandwidth.at(together) / together);
    }
    const double near = std::min(limit, rates_.node_bandwidth.at(active) / active);
    const double far = std::min(near, rates_.remote_bandwidth / active);
    const double far_share = group.numa_node ? (*group.numa_node == node ? 0 : 1) : remote_share;
    sum += 1 / ((1 - far_share) / near + far_share / far);
  }
  return sum;
}

double CpuPlanCost::bandwidth(const CpuPhasePlan& plan, std::size_t group) const {
  return bandwidth(load_of(plan), plan.groups.at(group));
}

double CpuPlanCost::seconds(const CpuPhasePlan& plan) const {
  const Load load = load_of(plan);
  double slowest = 0;
  for (const CpuGroup& mine : plan.groups) {
    const double reading = mine.share * work_.bytes / bandwidth(load, mine);
    const double computing = mine.share * work_.flops /
                             (rates_.core_flop_per_s * static_cast<double>(mine.cores.size()));
    slowest = std::max({slowest, reading, computing});
  }
  return slowest + static_cast<double>(work_.rounds) *
                       rates_.round_s.at(static_cast<double>(plan.num_cores()));
}

}  // namespace sluice
