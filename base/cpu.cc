#include "base/cpu.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/numa.h"

namespace sluice {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using TopologyPtr = std::unique_ptr<hwloc_topology, TopologyDeleter>;

TopologyPtr load_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error("hwloc cannot start: the machine cannot be read");
  TopologyPtr topology(raw);
  if (hwloc_topology_load(raw) != 0) throw Error("hwloc cannot read the machine's topology");
  return topology;
}

/// The processors that the process was started on (taskset, numactl); its threads choose among them
/// later. Nothing where the system does not say.
const std::optional<cpu_set_t> affinity_at_start = []() -> std::optional<cpu_set_t> {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::nullopt;
  return set;
}();

bool is_allowed(int processor) {
  return !affinity_at_start ||
         (processor < CPU_SETSIZE &&
          CPU_ISSET(static_cast<std::size_t>(processor), &*affinity_at_start));
}

/// The first of a set that may be used, or -1.
int first_allowed(hwloc_const_bitmap_t processors) {
  int processor = hwloc_bitmap_first(processors);
  while (processor >= 0 && !is_allowed(processor))
    processor = hwloc_bitmap_next(processors, processor);
  return processor;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

/// The caches of the highest level that there is, summed.
std::uint64_t last_level_cache_bytes(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t level : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    std::uint64_t bytes = 0;
    hwloc_obj_t cache = nullptr;
    while ((cache = hwloc_get_next_obj_by_type(topology, level, cache)) != nullptr) {
      bytes += cache->attr->cache.size;
    }
    if (bytes > 0) return bytes;
  }
  return 0;
}

}  // namespace

CpuTopology read_cpu_topology() {
  const TopologyPtr topology = load_topology();
  CpuTopology result;
  result.model_name = cpu_model_name();
  result.num_packages = std::max(1, hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_PACKAGE));
  result.last_level_cache_bytes = last_level_cache_bytes(topology.get());
  result.cgroup_cores = cgroup_quota_cores();
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core)) != nullptr) {
    const int processor = first_allowed(core->cpuset);
    if (processor >= 0) result.cores.push_back(processor);
  }
  std::vector<int> processors;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_PU, processor)) !=
         nullptr) {
    const auto os_index = static_cast<int>(processor->os_index);
    if (is_allowed(os_index)) processors.push_back(os_index);
  }
  result.num_processors = static_cast<int>(processors.size());
  if (result.cores.empty()) result.cores = processors;  // some virtual machines show no cores
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    const int os_index = static_cast<int>(node->os_index);
    const bool with_processors = has_processors(os_index);
    const auto near_cores =
        std::count_if(result.cores.begin(), result.cores.end(), [&](int first_processor) {
          return hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(first_processor)) != 0;
        });
    result.numa_nodes.push_back({
        .os_index = os_index,
        .memory_bytes = node->attr->numanode.local_memory,
        .has_processors = with_processors,
        .num_cores = with_processors ? static_cast<int>(near_cores) : 0,
    });
  }
  // hwloc has a node without processors behind the one that it is near to.
  std::sort(result.numa_nodes.begin(), result.numa_nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.os_index < b.os_index; });
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
