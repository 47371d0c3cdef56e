// Where memory comes to lie that was asked of a NUMA node, and how fast it is.
#include "engine/measure/memory_probe.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/engine/refused_call.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t gibibyte = 1024 * mebibyte;

const GpuList no_gpu = {{}, "no GPU in this test"};

/// Its caches do not count, so that blocks stay small.
CpuTopology topology_here() {
  CpuTopology topology = read_cpu_topology();
  topology.last_level_cache_bytes = 0;
  return topology;
}

TEST(ProbeBlockTest, IsBeyondTheCachesAndLeavesThreeQuarters) {
  const auto block = [](std::uint64_t free, std::uint64_t available, std::uint64_t cache,
                        std::size_t nodes) {
    return probe_block_bytes(free, available, cache, nodes, 2 * mebibyte);
  };
  EXPECT_EQ(block(64 * gibibyte, 64 * gibibyte, 32 * mebibyte, 1), 256 * mebibyte);
  EXPECT_EQ(block(64 * gibibyte, 64 * gibibyte, 300 * mebibyte, 1), 1200 * mebibyte);
  EXPECT_EQ(block(100 * mebibyte, 64 * gibibyte, 32 * mebibyte, 1), 24 * mebibyte);
  EXPECT_EQ(block(64 * gibibyte, 72 * mebibyte, 32 * mebibyte, 1), 18 * mebibyte);
  EXPECT_EQ(block(64 * gibibyte, 72 * mebibyte, 32 * mebibyte, 3), 6 * mebibyte);
  EXPECT_EQ(block(7 * mebibyte, 64 * gibibyte, 32 * mebibyte, 1), 0U);
  EXPECT_EQ(block(0, 0, 0, 1), 0U);
  // Less than what the threads can share is of no use.
  EXPECT_EQ(probe_block_bytes(100 * mebibyte, gibibyte, 0, 1, 24 * mebibyte), 24 * mebibyte);
  EXPECT_EQ(probe_block_bytes(100 * mebibyte, gibibyte, 0, 1, 25 * mebibyte), 0U);
}

TEST(MemoryProbeTest, FindsEveryPageWhereItWasAskedFor) {
  const CpuTopology topology = topology_here();
  ThreadPool pool(topology.cores);
  const MemoryProbe probe = probe_memory(pool, topology, no_gpu);
  ASSERT_EQ(probe.nodes.size(), topology.numa_nodes.size());
  EXPECT_EQ(probe.num_threads, static_cast<int>(topology.cores.size()));
  for (const NodeProbe& node : probe.nodes) {
    if (!node.problems.empty()) GTEST_SKIP() << node.problems.front();
    EXPECT_GT(node.bytes, 0U);
    EXPECT_LE(node.bytes, 256 * mebibyte);
    EXPECT_EQ(node.pages_asked * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)), node.bytes);
    EXPECT_EQ(node.pages_found, node.pages_asked);
    EXPECT_LE(node.huge_page_bytes.value_or(0), node.bytes);
    EXPECT_TRUE(node.beyond_caches);
    EXPECT_GT(node.read_bytes_per_s.value(), 1e8);
    EXPECT_LT(node.read_bytes_per_s.value(), 1e14);
    EXPECT_EQ(node.copies.size(), probe.nodes.size() - 1);
    EXPECT_FALSE(node.gpu.has_value());
  }
}

TEST(MemoryProbeTest, SaysWhatANodeCannotGive) {
  CpuTopology topology = topology_here();
  topology.numa_nodes.push_back(
      {.os_index = 1000, .memory_bytes = gibibyte, .has_processors = false});
  ThreadPool pool(topology.cores);
  const MemoryProbe probe = probe_memory(pool, topology, no_gpu);
  const NodeProbe& missing = probe.nodes.back();
  EXPECT_EQ(missing.bytes, 0U);
  EXPECT_EQ(missing.pages_asked, 0U);
  EXPECT_FALSE(missing.read_bytes_per_s.has_value());
  ASSERT_EQ(missing.problems.size(), 1U);
  EXPECT_NE(missing.problems[0].find("too little memory"), std::string::npos);
  EXPECT_TRUE(probe.nodes.front().copies.empty());
  const std::string text = describe(probe, topology, no_gpu);
  EXPECT_NE(text.find("node 1000: too little memory"), std::string::npos) << text;
  EXPECT_NE(text.find("1000  cxl"), std::string::npos) << text;
  EXPECT_NE(text.find("GPU: there is none (no GPU in this test)"), std::string::npos) << text;
}

TEST(MemoryProbeTest, ItsLinesHoldCopiesBetweenNodes) {
  CpuTopology topology;
  topology.numa_nodes = {{.os_index = 0, .memory_bytes = gibibyte, .num_cores = 4},
                         {.os_index = 2, .memory_bytes = gibibyte, .has_processors = false}};
  MemoryProbe probe{.num_threads = 4, .nodes = {}};
  probe.nodes.resize(2);
  probe.nodes[0].copies = {{.to_node = 2, .bytes_per_s = 12.5e9}};
  probe.nodes[1].copies = {{.to_node = 0, .bytes_per_s = 20e9}};
  probe.nodes[1].gpu = CopyRates{.to_gpu_bytes_per_s = 55e9, .from_gpu_bytes_per_s = 44e6};
  const std::string text = describe(probe, topology, {{GpuDevice{}}, ""});
  for (const char* part : {"read by 4 threads", "node 0       node 2  12.50 GB/s",
                           "node 2       node 0  20.00 GB/s", "55.00 GB/s  44.0 MB/s"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  const nlohmann::json json = as_json(probe.nodes[1], 4);
  EXPECT_EQ(json.at("copies").at(0).at("to_numa_node"), 0);
  EXPECT_EQ(json.at("to_gpu_bytes_per_s"), 55e9);
  EXPECT_EQ(json.at("from_gpu_bytes_per_s"), 44e6);
  EXPECT_TRUE(json.at("pages_found").is_null());
  EXPECT_TRUE(json.at("read_bytes_per_s").is_null());
}

/// The probe of the machine's first node by a thread that is refused these calls.
std::optional<NodeProbe> probe_without(const std::set<unsigned>& calls) {
  std::optional<NodeProbe> found;
  std::thread([&] {
    for (const unsigned call : calls) {
      if (!testing::refuse_call(call)) return;
    }
    CpuTopology topology = topology_here();
    topology.numa_nodes.resize(1);
    ThreadPool pool({topology.cores.front()});
    found = probe_memory(pool, topology, no_gpu).nodes.front();
  }).join();
  return found;
}

TEST(MemoryProbeTest, WithoutPermissionToAskItMeasuresAndSaysSo) {
  const std::optional<NodeProbe> probe = probe_without({SYS_move_pages});
  if (!probe) GTEST_SKIP() << "no system call can be refused here";
  EXPECT_GT(probe->bytes, 0U);
  EXPECT_GT(probe->pages_asked, 0U);
  EXPECT_FALSE(probe->pages_found.has_value());
  EXPECT_GT(probe->read_bytes_per_s.value(), 0);
  const std::string last = probe->problems.empty() ? "" : probe->problems.back();
  EXPECT_EQ(last, "the system does not say where memory lies: Operation not permitted");
  EXPECT_TRUE(as_json(*probe, 1).at("pages_found").is_null());
}

TEST(MemoryProbeTest, WithoutPermissionToBindTheOnlyNodeIsStillMeasured) {
  const std::optional<NodeProbe> probe = probe_without({SYS_move_pages, SYS_mbind});
  if (!probe) GTEST_SKIP() << "no system call can be refused here";
  EXPECT_GT(probe->bytes, 0U);
  EXPECT_FALSE(probe->pages_found.has_value());
  EXPECT_GT(probe->read_bytes_per_s.value(), 0);
  ASSERT_EQ(probe->problems.size(), 2U);
  EXPECT_NE(probe->problems[0].find("cannot be bound"), std::string::npos);
}

}  // namespace
}  // namespace sluice
