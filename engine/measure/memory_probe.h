#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "codelets/runtime/gpu.h"

namespace sluice {

/// Bytes that all threads copied from one NUMA node's memory to another's, a second.
struct NodeCopy {
  int to_node = 0;
  double bytes_per_s = 0;
};

/// A block of memory that was asked of one NUMA node: where it came to lie, and how fast it is.
struct NodeProbe {
  std::uint64_t bytes = 0;        ///< 0: the node has too little free, see `problem`
  std::uint64_t pages_asked = 0;  ///< all of them on the node
  /// On the node, as the system says (move_pages). Nothing where it does not say.
  std::optional<std::uint64_t> pages_found;
  std::optional<std::uint64_t> huge_page_bytes;  ///< of them, in huge pages
  bool beyond_caches = false;  ///< else the rate is in part that of the processors' caches
  std::optional<double> read_bytes_per_s;  ///< all threads together
  std::vector<NodeCopy> copies;            ///< to each other node
  std::optional<CopyRates> gpu;            ///< pinned, to and from the first GPU
  std::vector<std::string> problems;       ///< what could not be had, in words
};

/// What `sluice info --memory` found.
struct MemoryProbe {
  int num_threads = 0;
  std::vector<NodeProbe> nodes;  ///< as CpuTopology::numa_nodes
};

/// How much memory of a node is probed, of `free_bytes` that the node has and `available_bytes`
/// that the process may still take of all nodes together: at most a quarter of either, `num_nodes`
/// blocks live at once, beyond the caches by a factor of four but not below 256 MiB where there is
/// so much. 0: too little. A multiple of 2 MiB.
std::uint64_t probe_block_bytes(std::uint64_t free_bytes, std::uint64_t available_bytes,
                                std::uint64_t cache_bytes, std::size_t num_nodes,
                                std::uint64_t least_bytes);

/// Takes a block on each node, touches it, asks where its pages are, and measures; about a second.
/// No task may run meanwhile. What the system refuses is a problem of that node, not an Error.
MemoryProbe probe_memory(ThreadPool& pool, const CpuTopology& topology, const GpuList& gpus);

/// Of a memory node, for programs: `probe`.
nlohmann::json as_json(const NodeProbe& probe, int num_threads);

/// One line a node, then the copies between nodes and those to a GPU, and what could not be had.
std::string describe(const MemoryProbe& probe, const CpuTopology& topology, const GpuList& gpus);

/// Far memory (CXL) has no processors: "cxl", else "ddr".
const char* tier_of(const NumaNode& node);

}  // namespace sluice
