#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/topology.h"

namespace sluice {

/// Cores by what they share, seen or only supposed: Sandwich's TopoTree (sections 5.1 and 5.2). The
/// leaves are cores that compute; a node without any is not there, nor is one with a single child.
struct TopoTree {
  int core = -1;  ///< of a leaf
  std::vector<TopoTree> children = {};

  /// The fundamental tree: the cores that may be used, by what the system says that they share.
  static TopoTree fundamental(const Topology& topology);

  /// From the left.
  std::vector<int> cores() const;
  /// Levels below the root.
  int height() const;
  /// Equal for equal trees: "((0 1) (2 3))".
  std::string key() const;
  bool operator==(const TopoTree&) const = default;
};

/// The (n, t) by which group(n, t, d) can group so many siblings: n of them, t apart, in one node.
/// n >= 2, and n * t divides them.
std::vector<std::pair<int, int>> ways_to_group(int siblings);

/// group(n, t, d) of section 5.2: the children of each node at depth d - 1 become nodes of n, t
/// apart. Nothing where they cannot, or where a node would have a single child.
std::optional<TopoTree> group(const TopoTree& tree, int n, int t, int depth);
/// remove(n, d) of section 5.2: each node at depth d - 1 loses its n right-most children. Nothing
/// where one has no more than n.
std::optional<TopoTree> remove(const TopoTree& tree, int n, int depth);

/// The tree and all that group() makes of it, again and again, each once.
std::vector<TopoTree> grouped_trees(const TopoTree& tree);
/// What remove() makes of it in one step, each once.
std::vector<TopoTree> smaller_trees(const TopoTree& tree);

/// The cores below the nodes at each depth, from the root down (section 5.3: horizontal cuts): how
/// they may be cut into groups that compute. Each once; at most `most_groups` groups.
std::vector<std::vector<std::vector<int>>> horizontal_cuts(const TopoTree& tree, int most_groups);

}  // namespace sluice
