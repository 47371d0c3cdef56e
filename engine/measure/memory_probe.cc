#include "engine/measure/memory_probe.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/memory.h"
#include "base/numa.h"
#include "base/units.h"
#include "codelets/kernels/probe.h"
#include "engine/console/tables.h"
#include "engine/run/moved_bytes.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// A node's block, and the loops that read it.
using Block = std::unique_ptr<ReadProbe>;

/// On the node, or nothing, with the reason among the problems.
Block take_block(ThreadPool& pool, int node, std::size_t num_nodes, NodeProbe& probe) {
  Buffer buffer(probe.bytes);
  try {
    interleave(buffer, {node});
  } catch (const Error& error) {
    // A container may forbid it. What a machine with one node gives can only be of that one.
    probe.problems.emplace_back(error.what());
    if (num_nodes > 1) {
      probe.bytes = 0;
      return nullptr;
    }
  }
  probe.pages_asked = num_pages(buffer);
  return std::make_unique<ReadProbe>(pool, std::move(buffer));
}

void check_placement(const Buffer& buffer, int node, NodeProbe& probe) {
  try {
    const auto pages = pages_by_node(buffer);
    const auto there = pages.find(node);
    probe.pages_found = there == pages.end() ? 0 : there->second;
  } catch (const Error& error) {
    probe.problems.emplace_back(error.what());
  }
  probe.huge_page_bytes = huge_page_bytes_of(buffer);
}

/// All threads, as often as takes some 20 ms; the fastest time counts.
double copy_bytes_per_s(ThreadPool& pool, const Buffer& from, const Buffer& to) {
  const std::size_t bytes = std::min(from.size(), to.size());
  constexpr std::size_t piece_bytes = std::size_t{1} << 20;
  const auto num_pieces = static_cast<std::int64_t>((bytes + piece_bytes - 1) / piece_bytes);
  constexpr auto enough = std::chrono::milliseconds(20);
  const Clock::time_point start = Clock::now();
  double best_s = std::numeric_limits<double>::infinity();
  do {
    const Clock::time_point begin = Clock::now();
    pool.run(num_pieces, [&](std::int64_t piece) {
      const std::size_t at = static_cast<std::size_t>(piece) * piece_bytes;
      std::memcpy(to.data() + at, from.data() + at, std::min(piece_bytes, bytes - at));
    });
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - begin).count());
  } while (Clock::now() - start < enough);
  return static_cast<double>(bytes) / best_s;
}

void measure_gpu(const Buffer& buffer, NodeProbe& probe) {
  try {
    probe.gpu = measure_copy_rates(buffer);
  } catch (const Error& error) {
    probe.problems.emplace_back(error.what());
  }
}

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

std::string or_unknown(const std::optional<std::uint64_t>& value) {
  return value ? fmt::format("{}", *value) : "unknown";
}

std::string rate_or_none(const std::optional<double>& bytes_per_s) {
  return bytes_per_s ? format_rate(*bytes_per_s) : "none";
}

TableRows placement_rows(const MemoryProbe& probe, const CpuTopology& topology) {
  TableRows rows = {
      {"node", "tier", "block", "pages asked", "found there", "in huge pages",
       fmt::format("read by {} thread{}", probe.num_threads, probe.num_threads == 1 ? "" : "s")}};
  rows.reserve(1 + probe.nodes.size());
  for (std::size_t i = 0; i < probe.nodes.size(); ++i) {
    const NodeProbe& node = probe.nodes[i];
    const NumaNode& of = topology.numa_nodes[i];
    const bool of_caches = node.read_bytes_per_s && !node.beyond_caches;
    rows.push_back(
        {std::to_string(of.os_index), tier_of(of), format_bytes(node.bytes),
         std::to_string(node.pages_asked), or_unknown(node.pages_found),
         node.huge_page_bytes ? format_bytes(*node.huge_page_bytes) : std::string("unknown"),
         rate_or_none(node.read_bytes_per_s) + (of_caches ? " (caches in part)" : "")});
  }
  return rows;
}

std::string copies_text(const MemoryProbe& probe, const CpuTopology& topology) {
  if (topology.numa_nodes.size() < 2) return "copies between nodes: there is one node\n";
  TableRows rows = {{"copied from", "to", "rate"}};
  for (std::size_t i = 0; i < probe.nodes.size(); ++i) {
    for (const NodeCopy& copy : probe.nodes[i].copies) {
      rows.push_back({fmt::format("node {}", topology.numa_nodes[i].os_index),
                      fmt::format("node {}", copy.to_node), format_rate(copy.bytes_per_s)});
    }
  }
  return rows.size() > 1 ? format_table(rows) : "copies between nodes: none could be measured\n";
}

std::string gpu_text(const MemoryProbe& probe, const CpuTopology& topology, const GpuList& gpus) {
  if (gpus.devices.empty())
    return fmt::format("copies to and from a GPU: there is none ({})\n", gpus.problem);
  TableRows rows = {{"pinned memory of", "to the GPU", "from it"}};
  rows.reserve(1 + probe.nodes.size());
  for (std::size_t i = 0; i < probe.nodes.size(); ++i) {
    const std::optional<CopyRates>& rates = probe.nodes[i].gpu;
    rows.push_back({fmt::format("node {}", topology.numa_nodes[i].os_index),
                    rates ? format_rate(rates->to_gpu_bytes_per_s) : "none",
                    rates ? format_rate(rates->from_gpu_bytes_per_s) : "none"});
  }
  return format_table(rows);
}

}  // namespace

const char* tier_of(const NumaNode& node) { return node.has_processors ? "ddr" : "cxl"; }

std::uint64_t probe_block_bytes(std::uint64_t free_bytes, std::uint64_t available_bytes,
                                std::uint64_t cache_bytes, std::size_t num_nodes,
                                std::uint64_t least_bytes) {
  constexpr std::uint64_t usual_bytes = 256 * mebibyte;
  constexpr std::uint64_t times_caches = 4;
  constexpr std::uint64_t share = 4;
  const std::uint64_t wanted = std::max(usual_bytes, times_caches * cache_bytes);
  const std::uint64_t all_nodes = std::max<std::size_t>(1, num_nodes);
  const std::uint64_t most = std::min(free_bytes / share, available_bytes / share / all_nodes);
  const std::uint64_t bytes = std::min(wanted, most) / huge_page_bytes * huge_page_bytes;
  return bytes >= least_bytes ? bytes : 0;
}

MemoryProbe probe_memory(ThreadPool& pool, const CpuTopology& topology, const GpuList& gpus) {
  MemoryProbe result{.num_threads = pool.num_threads(), .nodes = {}};
  const std::size_t num_nodes = topology.numa_nodes.size();
  const std::uint64_t available_bytes = available_memory_bytes();
  result.nodes.resize(num_nodes);
  std::vector<Block> blocks(num_nodes);
  for (std::size_t i = 0; i < num_nodes; ++i) {
    const int node = topology.numa_nodes[i].os_index;
    NodeProbe& probe = result.nodes[i];
    const std::uint64_t free_bytes = free_node_bytes(node);
    probe.bytes =
        probe_block_bytes(free_bytes, available_bytes, topology.last_level_cache_bytes, num_nodes,
                          std::max<std::uint64_t>(ReadProbe::least_bytes(pool), huge_page_bytes));
    if (probe.bytes == 0) {
      probe.problems.push_back(
          fmt::format("too little memory to try: the node has {} free, the process may take {}",
                      format_bytes(free_bytes), format_bytes(available_bytes)));
      continue;
    }
    probe.beyond_caches = probe.bytes >= 2 * topology.last_level_cache_bytes;
    blocks[i] = take_block(pool, node, num_nodes, probe);
    if (blocks[i] == nullptr) continue;
    check_placement(blocks[i]->buffer(), node, probe);
    probe.read_bytes_per_s = blocks[i]->measure();
    if (!gpus.devices.empty()) measure_gpu(blocks[i]->buffer(), probe);
  }
  for (std::size_t i = 0; i < num_nodes; ++i) {
    for (std::size_t j = 0; j < num_nodes; ++j) {
      if (i == j || blocks[i] == nullptr || blocks[j] == nullptr) continue;
      result.nodes[i].copies.push_back(
          {.to_node = topology.numa_nodes[j].os_index,
           .bytes_per_s = copy_bytes_per_s(pool, blocks[i]->buffer(), blocks[j]->buffer())});
    }
  }
  return result;
}

nlohmann::json as_json(const NodeProbe& probe, int num_threads) {
  nlohmann::json copies = nlohmann::json::array();
  for (const NodeCopy& copy : probe.copies)
    copies.push_back({{"to_numa_node", copy.to_node}, {"bytes_per_s", copy.bytes_per_s}});
  nlohmann::json json = {{"bytes", probe.bytes},
                         {"pages_asked", probe.pages_asked},
                         {"pages_found", or_null(probe.pages_found)},
                         {"page_bytes", sysconf(_SC_PAGESIZE)},
                         {"huge_page_bytes", or_null(probe.huge_page_bytes)},
                         {"threads", num_threads},
                         {"beyond_caches", probe.beyond_caches},
                         {"read_bytes_per_s", or_null(probe.read_bytes_per_s)},
                         {"copies", std::move(copies)},
                         {"to_gpu_bytes_per_s", nullptr},
                         {"from_gpu_bytes_per_s", nullptr},
                         {"problems", probe.problems}};
  if (probe.gpu) {
    json["to_gpu_bytes_per_s"] = probe.gpu->to_gpu_bytes_per_s;
    json["from_gpu_bytes_per_s"] = probe.gpu->from_gpu_bytes_per_s;
  }
  return json;
}

std::string describe(const MemoryProbe& probe, const CpuTopology& topology, const GpuList& gpus) {
  std::string text = format_table(placement_rows(probe, topology));
  text += copies_text(probe, topology);
  text += gpu_text(probe, topology, gpus);
  for (std::size_t i = 0; i < probe.nodes.size(); ++i) {
    for (const std::string& problem : probe.nodes[i].problems)
      text += fmt::format("node {}: {}\n", topology.numa_nodes[i].os_index, problem);
  }
  return text;
}

}  // namespace sluice
