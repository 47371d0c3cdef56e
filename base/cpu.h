#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// A memory node of the machine as the operating system numbers it.
struct NumaNode {
  int os_index = 0;
  std::uint64_t memory_bytes = 0;
  bool has_processors = true;  ///< false: memory alone (CXL)
  int num_cores = 0;           ///< beside it, of those that this process may use
};

/// What this process may use of the machine: the allowed processors only (cgroup, and the affinity
/// mask that it was started with).
struct CpuTopology {
  std::string model_name;
  std::vector<int> cores;  ///< one operating-system processor a physical core, in hwloc's order
  int num_processors = 0;  ///< hardware threads
  int num_packages = 0;
  std::uint64_t last_level_cache_bytes = 0;  ///< all of them together, 0: unknown
  int cgroup_cores = 0;                      ///< cgroup_quota_cores()
  std::vector<NumaNode> numa_nodes;
};

/// Throws Error when hwloc cannot read the machine.
CpuTopology read_cpu_topology();

/// What is read in turn through so many bytes comes from memory each time: four times what the
/// caches hold, up to eight times where that is no more than 1 GiB.
std::uint64_t bytes_beyond_caches(const CpuTopology& topology);

/// Threads to use by default: physical cores, not above the cgroup's quota.
int default_num_threads(const CpuTopology& topology);

}  // namespace sluice
