#include "engine/simulate/simulated_links.h"

#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

struct Moved {
  double bytes = 0;
  double seconds = 0;
};
/// In one direction.
Moved moved(const CostModel& costs, unsigned from, unsigned to, Tier from_tier, Tier to_tier) {
  const NodeTraffic traffic = take_traffic(from, to);
  const auto bytes = static_cast<double>(traffic.bytes);
  const double latency_s = costs.transfer_s(from_tier, to_tier, 1);
  // One after the other, at the link's rate.
  const double per_byte_s = costs.transfer_s(from_tier, to_tier, 1e9) - latency_s;
  return {bytes, bytes * 1e-9 * per_byte_s + static_cast<double>(traffic.count) * latency_s};
}

}  // namespace

TierNodes tier_nodes(const SimulatedRuntime& machine) {
  return {machine.gpu_node(), main_memory_node, machine.cxl_node(), machine.disk_node()};
}

LinkTraffic take_link_traffic(const CostModel& costs, const SimulatedRuntime& machine) {
  LinkTraffic traffic;
  if (machine.disk_node() != no_memory_node) {
    const Moved read = moved(costs, machine.disk_node(), main_memory_node, Tier::disk, Tier::ddr);
    traffic.disk_bytes = read.bytes;
    traffic.busy.disk_s = read.seconds;
  }
  if (machine.gpu_node() == no_memory_node) return traffic;
  const TierNodes nodes = tier_nodes(machine);
  for (const Tier tier : {Tier::ddr, Tier::cxl}) {
    const unsigned node = nodes.at(static_cast<std::size_t>(tier));
    if (node == no_memory_node) continue;
    const Moved to_gpu = moved(costs, node, machine.gpu_node(), tier, Tier::hbm);
    const Moved to_cpu = moved(costs, machine.gpu_node(), node, Tier::hbm, tier);
    traffic.to_gpu_bytes += to_gpu.bytes;
    traffic.to_cpu_bytes += to_cpu.bytes;
    traffic.busy.to_gpu_s += to_gpu.seconds;
    traffic.busy.to_cpu_s += to_cpu.seconds;
  }
  return traffic;
}

}  // namespace sluice
