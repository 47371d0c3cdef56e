#include "perfmodels/cpu_plan_cost.h"

#include <algorithm>
#include <iterator>
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

namespace {

CoreRates rates_of_rows(const MachineProfile& profile, double rows) {
  if (!profile.cpu_cores)
    throw Error(
        "the profile {} does not describe its CPU's cores; add cpu.topology, "
        "cpu.node_bandwidth_gb_per_s, cpu.remote_bandwidth_gb_per_s and cpu.round_us",
        profile.name);
  const CoresProfile& cores = *profile.cpu_cores;
  CoreRates rates = {.node_bandwidth = cores.node_bandwidth_gb_per_s.value.scaled(giga),
                     .remote_bandwidth = cores.remote_bandwidth_gb_per_s.value * giga,
                     .round_s = cores.round_us.value.scaled(micro),
                     .core_flop_per_s = profile.cpu.gemm_tflop_per_s.value.at(rows) * tera /
                                        profile.cpu.cores->value,
                     .combine = profile.cpu.combine};
  for (const CoresProfile::Contention& each : cores.contention)
    rates.contention.push_back(
        {.cores = each.cores, .bandwidth = each.bandwidth_gb_per_s.value.scaled(giga)});
  return rates;
}

}  // namespace

CoreRates core_rates(const MachineProfile& profile) { return rates_of_rows(profile, 1); }

CoreRates core_rates(const MachineProfile& profile, const ModelDimensions& model,
                     const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.total_rows());
  CoreRates rates = rates_of_rows(profile, rows);
  const DeviceProfile& cpu = profile.cpu;
  rates.core_attention_flop_per_s =
      cpu.attention_tflop_per_s.value.at(rows) * tera / cpu.cores->value;
  if (shape.phase == Phase::decode)
    rates.attention_bandwidth_share =
        cpu.attention_bandwidth_gb_per_s.value.at(static_cast<double>(shape.batch),
                                                  visible_tokens(model, shape)) /
        cpu.memory_bandwidth_gb_per_s.value;
  return rates;
}

double PlanWork::bytes() const {
  double sum = attention.bytes;
  for (const Stage& stage : products) sum += stage.bytes;
  return sum;
}

double PlanWork::flops() const {
  double sum = attention.flops;
  for (const Stage& stage : products) sum += stage.flops;
  return sum;
}

PlanWork plan_work(const ModelDimensions& model, const std::vector<SequenceWork>& sequences) {
  PlanWork work{.rounds = model.num_layers * rounds_per_layer + 1,
                .num_kv_heads = model.num_kv_heads};
  for (const StageWork& stage : iteration_work(model, sequences)) {
    if (stage.name == "attention") {
      work.attention = {.bytes = stage.bytes, .flops = stage.flops};
    } else {
      work.products.push_back({.bytes = stage.bytes, .flops = stage.flops});
    }
  }
  return work;
}

CpuPlanCost::CpuPlanCost(const Topology& topology, CoreRates rates, const PlanWork& work)
    : rates_(std::move(rates)), work_(work) {
  std::set<int> nodes;
  int place = 0;
  for (const std::vector<int>& threads : topology.threads_of_cores()) {
    for (const int thread : threads) {
      node_of_[thread] = topology.numa_node_of(thread);
      place_of_[thread] = place;
      nodes.insert(node_of_[thread]);
    }
    ++place;
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

double CpuPlanCost::bandwidth(const Load& load, const CpuGroup& group,
                              std::optional<int> from) const {
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
    const double far_share = from ? (*from == node ? 0 : 1) : remote_share;
    sum += 1 / ((1 - far_share) / near + far_share / far);
  }
  return sum;
}

double CpuPlanCost::bandwidth(const CpuPhasePlan& plan, std::size_t group) const {
  const CpuGroup& asked = plan.groups.at(group);
  return bandwidth(load_of(plan), asked, asked.numa_node);
}

double CpuPlanCost::stage_s(const PlanWork::Stage& stage, double bytes_per_s,
                            double flop_per_s) const {
  const double reading_s = stage.bytes / bytes_per_s;
  const double computing_s = stage.flops / flop_per_s;
  return rates_.combine == Combine::sum ? reading_s + computing_s
                                        : std::max(reading_s, computing_s);
}

double CpuPlanCost::seconds(const CpuPhasePlan& plan) const {
  const Load load = load_of(plan);
  const bool kv_by_heads = std::ssize(plan.groups) <= work_.num_kv_heads;
  double slowest = 0;
  for (const CpuGroup& mine : plan.groups) {
    const auto cores = static_cast<double>(mine.cores.size());
    const double near = bandwidth(load, mine, mine.numa_node);
    const double of_kv = kv_by_heads ? near : bandwidth(load, mine, std::nullopt);
    double all = stage_s(work_.attention, of_kv * rates_.attention_bandwidth_share,
                         cores * rates_.core_attention_flop_per_s);
    for (const PlanWork::Stage& stage : work_.products)
      all += stage_s(stage, near, cores * rates_.core_flop_per_s);
    slowest = std::max(slowest, mine.share * all);
  }
  return slowest + static_cast<double>(work_.rounds) *
                       rates_.round_s.at(static_cast<double>(plan.num_cores()));
}

}  // namespace sluice
