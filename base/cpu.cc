#include "base/cpu.h"

#include <algorithm>
#include <fstream>

#include "base/cgroup.h"
#include "base/numa.h"
#include "base/topology.h"

namespace sluice {
namespace {

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

/// The caches of the highest level that there is, summed.
std::uint64_t last_level_cache_bytes(const Topology& topology) {
  for (const TopologyLevel level : {TopologyLevel::l3, TopologyLevel::l2}) {
    std::uint64_t bytes = 0;
    topology.root().for_each(level, [&](const TopologyNode& cache) {
      if (cache.allowed) bytes += cache.bytes;
    });
    if (bytes > 0) return bytes;
  }
  return 0;
}

int count_allowed(const Topology& topology, TopologyLevel level) {
  int count = 0;
  topology.root().for_each(level, [&](const TopologyNode& node) { count += node.allowed ? 1 : 0; });
  return count;
}

}  // namespace

CpuTopology read_cpu_topology() {
  const Topology topology = Topology::of_this_machine();
  CpuTopology result;
  result.model_name = cpu_model_name();
  result.num_packages = std::max(1, count_allowed(topology, TopologyLevel::package));
  result.last_level_cache_bytes = last_level_cache_bytes(topology);
  result.cgroup_cores = cgroup_quota_cores();
  result.cores = topology.cores();
  result.num_processors = count_allowed(topology, TopologyLevel::processor);
  for (const TopologyMemory& memory : topology.memories()) {
    if (!memory.allowed) continue;
    const bool with_processors = has_processors(memory.os_index);
    const auto near_cores = std::count_if(result.cores.begin(), result.cores.end(), [&](int core) {
      return std::find(memory.near_processors.begin(), memory.near_processors.end(), core) !=
             memory.near_processors.end();
    });
    result.numa_nodes.push_back({
        .os_index = memory.os_index,
        .memory_bytes = memory.bytes,
        .has_processors = with_processors,
        .num_cores = with_processors ? static_cast<int>(near_cores) : 0,
    });
  }
  return result;
}

std::uint64_t bytes_beyond_caches(const CpuTopology& topology) {
  constexpr std::uint64_t much = std::uint64_t{1} << 30;
  const std::uint64_t cached = topology.last_level_cache_bytes;
  return std::max(4 * cached, std::min(8 * cached, much));
}

int default_num_threads(const CpuTopology& topology) {
  const int cores = static_cast<int>(topology.cores.size());
  return std::max(1, topology.cgroup_cores > 0 ? std::min(cores, topology.cgroup_cores) : cores);
}

}  // namespace sluice
