#include "perfmodels/cpu_plan_cost.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace sluice {
namespace {

/// Active cores by what they share.
using Counts = std::map<int, int>;

}  // namespace

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

double CpuPlanCost::bandwidth(const CpuPhasePlan& plan, std::size_t group) const {
  Counts on_node;
  std::vector<Counts> sharing(rates_.contention.size());
  for (const CpuGroup& each : plan.groups) {
    for (const int core : each.cores) {
      ++on_node[node_of_.at(core)];
      for (std::size_t i = 0; i < sharing.size(); ++i)
        ++sharing[i][place_of_.at(core) / rates_.contention[i].cores];
    }
  }
  const CpuGroup& mine = plan.groups.at(group);
  const double remote_share = static_cast<double>(num_nodes_ - 1) / num_nodes_;
  double sum = 0;
  for (const int core : mine.cores) {
    const int node = node_of_.at(core);
    const double active = on_node.at(node);
    double limit = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < sharing.size(); ++i) {
      const double together = sharing[i].at(place_of_.at(core) / rates_.contention[i].cores);
      limit = std::min(limit, rates_.contention[i].bandwidth.at(together) / together);
    }
    const double near = std::min(limit, rates_.node_bandwidth.at(active) / active);
    const double far = std::min(near, rates_.remote_bandwidth / active);
    const double far_share = mine.numa_node ? (*mine.numa_node == node ? 0 : 1) : remote_share;
    sum += 1 / ((1 - far_share) / near + far_share / far);
  }
  return sum;
}

double CpuPlanCost::seconds(const CpuPhasePlan& plan) const {
  double slowest = 0;
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const CpuGroup& mine = plan.groups[group];
    const double reading = mine.share * work_.bytes / bandwidth(plan, group);
    const double computing = mine.share * work_.flops /
                             (rates_.core_flop_per_s * static_cast<double>(mine.cores.size()));
    slowest = std::max({slowest, reading, computing});
  }
  return slowest + static_cast<double>(work_.rounds) *
                       rates_.round_s.at(static_cast<double>(plan.num_cores()));
}

}  // namespace sluice
