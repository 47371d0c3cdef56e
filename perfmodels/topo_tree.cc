#include "perfmodels/topo_tree.h"

#include <algorithm>
#include <functional>
#include <set>

namespace sluice {
namespace {

/// What is below a node of the machine, without nodes that have one child or none.
std::optional<TopoTree> tree_of(const TopologyNode& node) {
  if (!node.allowed) return std::nullopt;
  if (node.level == TopologyLevel::processor) return TopoTree{.core = node.os_index};
  TopoTree tree;
  for (const TopologyNode& child : node.children) {
    std::optional<TopoTree> below = tree_of(child);
    if (!below) continue;
    if (node.level == TopologyLevel::core) return below;  // one hardware thread a core
    tree.children.push_back(std::move(*below));
  }
  if (tree.children.empty()) return std::nullopt;
  if (tree.children.size() == 1) {
    TopoTree only = std::move(tree.children.front());
    return only;
  }
  return tree;
}

/// Calls `change` for each node at a depth; false as soon as it says so.
bool change_nodes(TopoTree& tree, int depth, const std::function<bool(TopoTree&)>& change) {
  if (depth == 0) return !tree.children.empty() && change(tree);
  return !tree.children.empty() &&
         std::all_of(tree.children.begin(), tree.children.end(),
                     [&](TopoTree& child) { return change_nodes(child, depth - 1, change); });
}

/// Nodes with a single child are not there.
TopoTree without_single_children(TopoTree tree) {
  for (TopoTree& child : tree.children) child = without_single_children(std::move(child));
  if (tree.children.size() != 1) return tree;
  TopoTree only = std::move(tree.children.front());
  return only;
}

/// Children of the nodes at a depth; 0 where they differ, or some are leaves.
int num_children(const TopoTree& tree, int depth) {
  if (tree.children.empty()) return 0;
  if (depth == 0) return static_cast<int>(tree.children.size());
  const int first = num_children(tree.children.front(), depth - 1);
  for (const TopoTree& child : tree.children) {
    if (num_children(child, depth - 1) != first) return 0;
  }
  return first;
}

void collect(const TopoTree& tree, std::vector<int>& cores) {
  if (tree.children.empty()) cores.push_back(tree.core);
  for (const TopoTree& child : tree.children) collect(child, cores);
}

/// The nodes at a depth, or the leaves above it.
void collect_cut(const TopoTree& tree, int depth, std::vector<std::vector<int>>& groups) {
  if (depth == 0 || tree.children.empty()) {
    groups.push_back(tree.cores());
    return;
  }
  for (const TopoTree& child : tree.children) collect_cut(child, depth - 1, groups);
}

}  // namespace

TopoTree TopoTree::fundamental(const Topology& topology) {
  return tree_of(topology.root()).value_or(TopoTree{});
}

std::vector<int> TopoTree::cores() const {
  std::vector<int> result;
  collect(*this, result);
  return result;
}

int TopoTree::height() const {
  int highest = 0;
  for (const TopoTree& child : children) highest = std::max(highest, 1 + child.height());
  return highest;
}

std::string TopoTree::key() const {
  if (children.empty()) return std::to_string(core);
  std::string text = "(";
  for (const TopoTree& child : children) {
    if (text.size() > 1) text += ' ';
    text += child.key();
  }
  return text + ")";
}

std::vector<std::pair<int, int>> ways_to_group(int siblings) {
  std::vector<std::pair<int, int>> ways;
  for (int n = 2; n <= siblings; ++n) {
    for (int t = 1; n * t <= siblings; ++t) {
      if (siblings % (n * t) == 0) ways.emplace_back(n, t);
    }
  }
  return ways;
}

std::optional<TopoTree> group(const TopoTree& tree, int n, int t, int depth) {
  TopoTree result = tree;
  const bool possible = change_nodes(result, depth - 1, [&](TopoTree& node) {
    const int siblings = static_cast<int>(node.children.size());
    if (n < 2 || t < 1 || n >= siblings || siblings % (n * t) != 0) return false;
    std::vector<TopoTree> grouped;
    for (int block = 0; block < siblings; block += n * t) {
      for (int first = block; first < block + t; ++first) {
        TopoTree& together = grouped.emplace_back();
        for (int i = 0; i < n; ++i) {
          const int sibling = first + i * t;
          together.children.push_back(std::move(node.children[static_cast<std::size_t>(sibling)]));
        }
      }
    }
    node.children = std::move(grouped);
    return true;
  });
  if (!possible) return std::nullopt;
  return result;
}

std::optional<TopoTree> remove(const TopoTree& tree, int n, int depth) {
  TopoTree result = tree;
  const bool possible = change_nodes(result, depth - 1, [&](TopoTree& node) {
    const auto siblings = static_cast<std::ptrdiff_t>(node.children.size());
    if (n < 1 || n >= siblings) return false;
    node.children.erase(node.children.end() - n, node.children.end());
    return true;
  });
  if (!possible) return std::nullopt;
  return without_single_children(std::move(result));
}

std::vector<TopoTree> grouped_trees(const TopoTree& tree) {
  std::vector<TopoTree> trees = {tree};
  std::set<std::string> seen = {tree.key()};
  for (std::size_t i = 0; i < trees.size(); ++i) {
    for (int depth = 1; depth <= trees[i].height(); ++depth) {
      for (const auto& [n, t] : ways_to_group(num_children(trees[i], depth - 1))) {
        std::optional<TopoTree> next = group(trees[i], n, t, depth);
        if (next && seen.insert(next->key()).second) trees.push_back(std::move(*next));
      }
    }
  }
  return trees;
}

std::vector<TopoTree> smaller_trees(const TopoTree& tree) {
  std::vector<TopoTree> trees;
  std::set<std::string> seen;
  for (int depth = 1; depth <= tree.height(); ++depth) {
    for (int n = 1;; ++n) {
      std::optional<TopoTree> next = remove(tree, n, depth);
      if (!next) break;
      if (seen.insert(next->key()).second) trees.push_back(std::move(*next));
    }
  }
  return trees;
}

std::vector<std::vector<std::vector<int>>> horizontal_cuts(const TopoTree& tree, int most_groups) {
  std::vector<std::vector<std::vector<int>>> cuts;
  for (int depth = 0; depth <= tree.height(); ++depth) {
    std::vector<std::vector<int>> groups;
    collect_cut(tree, depth, groups);
    if (static_cast<int>(groups.size()) > most_groups) break;
    if (std::find(cuts.begin(), cuts.end(), groups) == cuts.end())
      cuts.push_back(std::move(groups));
  }
  return cuts;
}

}  // namespace sluice
