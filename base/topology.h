#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What the processors below a node of the tree have in common.
enum class TopologyLevel : std::uint8_t {
  machine,
  package,
  group,      ///< a die, or what the system calls a group or cluster
  numa_node,  ///< the memory that they read fastest
  l3,
  l2,
  core,
  processor,  ///< a hardware thread
};
std::string_view to_string(TopologyLevel level);

/// A node of a machine's tree of processors (Sandwich section 5.1: the fundamental TopoTree).
struct TopologyNode {
  TopologyLevel level = TopologyLevel::machine;
  int os_index = -1;        ///< of a NUMA node and of a processor: the system's number
  std::uint64_t bytes = 0;  ///< of a NUMA node's memory, or of a cache
  bool allowed = true;      ///< whether the process may use some processor below it
  std::vector<TopologyNode> children = {};

  /// Calls `visit` for each node of a level in or below this one, from the left.
  void for_each(TopologyLevel of, const std::function<void(const TopologyNode&)>& visit) const;
  bool operator==(const TopologyNode&) const = default;
};

/// Memory that the system numbers; also where no processor is nearer to it than to other memory.
struct TopologyMemory {
  int os_index = 0;
  std::uint64_t bytes = 0;
  bool allowed = true;  ///< whether the process may take some of it
  /// Processors that are nearest, allowed or not; of a node without any (CXL) those of the node
  /// that it is near to.
  std::vector<int> near_processors = {};
};

/// The processors of a machine, caches and memory between them, as a tree: this machine's, or one
/// that a text describes.
class Topology {
 public:
  /// This machine's. What the process may not use (cgroup, and the affinity mask that it was
  /// started with) is in the tree, marked. Throws Error when hwloc cannot read the machine.
  static Topology of_this_machine();
  /// Of a file that hwloc's lstopo has written (XML), or where no such file is there, of hwloc's
  /// synthetic text, such as "pack:2 numa:1 l3:4 core:8 pu:2". Throws Error for others.
  static Topology described_by(const std::string& file_or_text);
  /// Of such a text alone: no file is looked for. Throws Error for others, and for more than 4,096
  /// processors.
  static Topology of_synthetic_text(const std::string& text);

  const TopologyNode& root() const { return root_; }
  bool is_this_machine() const { return is_this_machine_; }
  /// By the system's number.
  const std::vector<TopologyMemory>& memories() const { return memories_; }

  /// Nodes of a level, allowed or not.
  int count(TopologyLevel level) const;
  /// The first allowed hardware thread of each core that has one, from the left: what threads are
  /// bound to.
  std::vector<int> cores() const;
  /// All hardware threads of each core, allowed or not, from the left.
  std::vector<std::vector<int>> threads_of_cores() const;
  /// The NUMA node of a hardware thread, or -1.
  int numa_node_of(int processor) const;

  /// In words, as "2 packages, 4 NUMA nodes, 128 cores, 256 hardware threads"; levels that add
  /// nothing are left out.
  std::string summary() const;
  /// The tree as a text, without sizes of memory and without what the process may use: equal for
  /// equal machines.
  std::string shape() const;

 private:
  friend class TopologyReader;
  TopologyNode root_;
  std::vector<TopologyMemory> memories_;
  bool is_this_machine_ = false;
};

}  // namespace sluice
