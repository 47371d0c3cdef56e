#include "base/topology.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/cpu.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using sluice::testing::expect_error;

TEST(TopologyTest, ReadsSyntheticTexts) {
  const Topology topology = Topology::described_by("pack:2 numa:2 l3:2 l2:4 core:1 pu:2");
  EXPECT_FALSE(topology.is_this_machine());
  EXPECT_EQ(topology.count(TopologyLevel::machine), 1);
  EXPECT_EQ(topology.count(TopologyLevel::package), 2);
  EXPECT_EQ(topology.count(TopologyLevel::numa_node), 4);
  EXPECT_EQ(topology.count(TopologyLevel::l3), 8);
  EXPECT_EQ(topology.count(TopologyLevel::l2), 32);
  EXPECT_EQ(topology.count(TopologyLevel::core), 32);
  EXPECT_EQ(topology.count(TopologyLevel::processor), 64);
  EXPECT_EQ(topology.summary(),
            "2 packages, 4 NUMA nodes, 8 L3 caches, 32 L2 caches, 32 cores, 64 hardware threads");
  const std::vector<int> cores = topology.cores();
  ASSERT_EQ(cores.size(), 32U);
  EXPECT_EQ(cores[1], 2) << "one hardware thread a core";
  EXPECT_EQ(topology.numa_node_of(cores[7]), 0);
  EXPECT_EQ(topology.numa_node_of(cores[8]), 1);
  EXPECT_EQ(topology.numa_node_of(cores[31]), 3);
  EXPECT_EQ(topology.numa_node_of(64), -1);
  EXPECT_EQ(topology.memories().size(), 4U);
  EXPECT_TRUE(topology.root().allowed);
}

// Between a package and what it consists of stands the memory that hangs on it.
TEST(TopologyTest, HasNumaNodesBetweenOtherLevels) {
  const Topology topology = Topology::described_by("pack:2 l3:1 core:2 pu:1");
  const TopologyNode* node = &topology.root();
  std::vector<TopologyLevel> levels;
  while (!node->children.empty()) {
    levels.push_back(node->level);
    node = &node->children.front();
  }
  levels.push_back(node->level);
  using Level = TopologyLevel;
  const std::vector<Level> outer = {Level::machine, Level::package};
  ASSERT_GE(levels.size(), outer.size());
  EXPECT_EQ(levels.front(), Level::machine);
  EXPECT_EQ(levels.back(), Level::processor);
  EXPECT_EQ(std::count(levels.begin(), levels.end(), Level::numa_node), 1);
  EXPECT_EQ(std::count(levels.begin(), levels.end(), Level::l3), 1);
}

TEST(TopologyTest, HasEqualShapesForEqualMachinesOnly) {
  const auto shape = [](const char* text) { return Topology::described_by(text).shape(); };
  EXPECT_EQ(shape("pack:2 numa:1 core:4 pu:1"), shape("pack:2 numa:1 core:4 pu:1"));
  EXPECT_NE(shape("pack:2 numa:1 core:4 pu:1"), shape("pack:1 numa:2 core:4 pu:1"));
  EXPECT_NE(shape("pack:2 numa:1 core:4 pu:1"), shape("pack:2 numa:1 core:4 pu:2"));
  EXPECT_NE(shape("pack:2 numa:1 l3:1(size=1MiB) core:4 pu:1"),
            shape("pack:2 numa:1 l3:1(size=2MiB) core:4 pu:1"));
}

TEST(TopologyTest, OfThisMachineHasItsCores) {
  const Topology topology = Topology::of_this_machine();
  EXPECT_TRUE(topology.is_this_machine());
  const CpuTopology cpu = read_cpu_topology();
  EXPECT_EQ(topology.cores(), cpu.cores);
  EXPECT_FALSE(cpu.cores.empty());
  EXPECT_EQ(std::set<int>(cpu.cores.begin(), cpu.cores.end()).size(), cpu.cores.size());
  for (const int core : cpu.cores) EXPECT_GE(topology.numa_node_of(core), 0);
  EXPECT_EQ(topology.shape(), Topology::of_this_machine().shape());
}

TEST(TopologyTest, RefusesWhatHwlocCannotRead) {
  expect_error(
      [] { Topology::described_by("pack:2 numa:banana"); },
      {"topology \"pack:2 numa:banana\": no such file, and hwloc does not read it as a synthetic "
       "text; give something like"});
  expect_error([] { Topology::described_by(""); }, {"hwloc does not read it"});
  const test::TemporaryFolder folder;
  const std::string path = folder.file("machine.xml");
  std::ofstream(path) << "<topology><object type=\"Machine\"";
  expect_error([&] { Topology::described_by(path); },
               {path, "hwloc cannot read it as a topology", "lstopo --of xml"});
}

TEST(TopologyTest, OfATextAloneLooksForNoFile) {
  EXPECT_EQ(Topology::of_synthetic_text("pack:2 core:4 pu:1").shape(),
            Topology::described_by("pack:2 core:4 pu:1").shape());
  const test::TemporaryFolder folder;
  const std::string path = folder.file("machine.xml");
  std::ofstream(path) << "<topology/>";
  expect_error([&] { Topology::of_synthetic_text(path); },
               {"hwloc does not read \"" + path + "\" as a synthetic text"});
}

// Which would take gigabytes, and minutes.
TEST(TopologyTest, RefusesMoreThreadsThanAnyMachineHas) {
  for (const char* text : {"pack:1000 core:1000 pu:2", "300 300", "pack:5000 [numa(memory=1GB)]"}) {
    expect_error([&] { Topology::described_by(text); },
                 {"topology \"", text, "more than 4096 hardware threads, expected no more"});
  }
  const Topology sized =
      Topology::of_synthetic_text("pack:2(memory=99999GB) l3:2(size=33554432) core:2 pu:1");
  EXPECT_EQ(sized.cores().size(), 8U) << "what is in brackets is no number of threads";
}

}  // namespace
}  // namespace sluice
