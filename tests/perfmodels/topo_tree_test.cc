#include "perfmodels/topo_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>

namespace sluice {
namespace {

TopoTree tree_of(const char* text) { return TopoTree::fundamental(Topology::described_by(text)); }

TopoTree flat(int cores) {
  TopoTree tree;
  for (int core = 0; core < cores; ++core) tree.children.push_back({.core = core});
  return tree;
}

TEST(TopoTreeTest, OfAMachineHasWhatItsCoresShare) {
  EXPECT_EQ(tree_of("pack:2 numa:1 l3:2 l2:2 core:1 pu:1").key(), "(((0 1) (2 3)) ((4 5) (6 7)))");
  EXPECT_EQ(tree_of("pack:2 numa:1 core:2 pu:2").key(), "((0 2) (4 6))") << "a thread a core";
  EXPECT_EQ(tree_of("pack:1 numa:1 core:1 pu:1").key(), "0");
  EXPECT_EQ(tree_of("pack:2 numa:1 core:2 pu:2").height(), 2);
}

// Worked out by hand: of four nodes {01}{23}, {02}{13} and all; of eight pairs 1, 2 and 4 apart,
// fours 1 and 2 apart, and all.
TEST(TopoTreeTest, GroupsAsManyWaysAsWorkedOutByHand) {
  EXPECT_EQ(ways_to_group(4).size(), 3U);
  EXPECT_EQ(ways_to_group(8).size(), 6U);
  EXPECT_EQ(ways_to_group(1).size(), 0U);
  EXPECT_EQ(ways_to_group(7).size(), 1U) << "all seven";
}

TEST(TopoTreeTest, GroupsByStrideAndRemovesFromTheRight) {
  const TopoTree eight = flat(8);
  EXPECT_EQ(group(eight, 2, 1, 1)->key(), "((0 1) (2 3) (4 5) (6 7))");
  EXPECT_EQ(group(eight, 2, 2, 1)->key(), "((0 2) (1 3) (4 6) (5 7))");
  EXPECT_EQ(group(eight, 4, 2, 1)->key(), "((0 2 4 6) (1 3 5 7))");
  EXPECT_EQ(group(eight, 3, 1, 1), std::nullopt);
  EXPECT_EQ(group(eight, 8, 1, 1), std::nullopt) << "a node with a single child";
  const TopoTree fours = *group(eight, 4, 1, 1);
  EXPECT_EQ(group(fours, 2, 1, 2)->key(), "(((0 1) (2 3)) ((4 5) (6 7)))");
  EXPECT_EQ(remove(fours, 1, 2)->key(), "((0 1 2) (4 5 6))")
      << "section 3.3: one core of each four";
  EXPECT_EQ(remove(fours, 1, 1)->key(), "(0 1 2 3)");
  EXPECT_EQ(remove(fours, 3, 2)->key(), "(0 4)");
  EXPECT_EQ(remove(fours, 4, 2), std::nullopt);
  EXPECT_EQ(smaller_trees(fours).size(), 4U) << "one node of two, one to three cores of four";
}

TEST(TopoTreeTest, CutsHorizontally) {
  const TopoTree tree = tree_of("pack:2 numa:1 l3:2 core:2 pu:1");
  using Groups = std::vector<std::vector<int>>;
  const std::vector<Groups> cuts = horizontal_cuts(tree, 4);
  ASSERT_EQ(cuts.size(), 3U) << "eight groups are too many";
  EXPECT_EQ(cuts[0], (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(cuts[1], (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(cuts[2], (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

using Blocks = std::vector<std::vector<int>>;

/// Calls `visit` for every partition of [0, count) into blocks of `size`, whatever they have.
void all_partitions(int count, int size, const std::function<void(const Blocks&)>& visit) {
  Blocks blocks;
  std::vector<bool> taken(static_cast<std::size_t>(count));
  const std::function<void(int)> fill = [&](int from) {
    if (!blocks.empty() && static_cast<int>(blocks.back().size()) < size) {
      for (int i = from; i < count; ++i) {
        if (taken[static_cast<std::size_t>(i)]) continue;
        taken[static_cast<std::size_t>(i)] = true;
        blocks.back().push_back(i);
        fill(i + 1);
        blocks.back().pop_back();
        taken[static_cast<std::size_t>(i)] = false;
      }
      return;
    }
    const auto first = std::find(taken.begin(), taken.end(), false);
    if (first == taken.end()) return visit(blocks);
    const auto index = static_cast<int>(first - taken.begin());
    *first = true;
    blocks.push_back({index});
    fill(index + 1);
    blocks.pop_back();
    *first = false;
  };
  fill(0);
}

/// Whether blocks are shifts of each other whose members are one stride apart, and each stretch of
/// neighbours is filled by as many blocks as the stride (assumption A.2 of section 5.2).
bool are_tiled(const Blocks& blocks) {
  const int stride = blocks[0][1] - blocks[0][0];
  const int span = stride * static_cast<int>(blocks[0].size());
  for (const std::vector<int>& block : blocks) {
    for (std::size_t i = 1; i < block.size(); ++i) {
      if (block[i] - block[i - 1] != stride) return false;
    }
    if (block.front() / span != block.back() / span) return false;
  }
  return true;
}

/// Trees whose leaves are these texts, in all ways: every node may be split into equal tiled
/// blocks, from the top down.
std::set<std::string> oracle(const std::vector<std::string>& leaves) {
  const auto text = [](const std::vector<std::string>& parts) {
    std::string joined = "(";
    for (const std::string& part : parts) joined += (joined.size() > 1 ? " " : "") + part;
    return joined + ")";
  };
  std::set<std::string> found = {text(leaves)};
  const int count = static_cast<int>(leaves.size());
  for (int size = 2; size < count; ++size) {
    if (count % size != 0) continue;
    all_partitions(count, size, [&](const Blocks& blocks) {
      if (!are_tiled(blocks)) return;
      // The same way within each block: by place, so that they stay alike.
      std::vector<std::string> places;
      static int last_place = 0;  // no leaf's text has another one's
      for (int i = 0; i < size; ++i) places.push_back("<" + std::to_string(++last_place) + ">");
      for (const std::string& inside : oracle(places)) {
        std::vector<std::string> nodes;
        for (const std::vector<int>& block : blocks) {
          std::string node = inside;
          for (int i = 0; i < size; ++i) {
            const std::string& place = places[static_cast<std::size_t>(i)];
            node.replace(node.find(place), place.size(),
                         leaves[static_cast<std::size_t>(block[static_cast<std::size_t>(i)])]);
          }
          nodes.push_back(node);
        }
        const std::set<std::string> above = oracle(nodes);
        found.insert(above.begin(), above.end());
      }
    });
  }
  return found;
}

TEST(TopoTreeTest, FindsTheTreesOfABruteForceOracle) {
  for (int cores = 2; cores <= 12; ++cores) {
    std::vector<std::string> names;
    for (int core = 0; core < cores; ++core) names.push_back(std::to_string(core));
    std::set<std::string> found;
    for (const TopoTree& tree : grouped_trees(flat(cores))) {
      EXPECT_TRUE(found.insert(tree.key()).second) << tree.key() << " was found twice";
      const std::vector<int> leaves = tree.cores();
      EXPECT_EQ(std::set<int>(leaves.begin(), leaves.end()).size(), leaves.size());
    }
    EXPECT_EQ(found, oracle(names)) << cores << " cores";
  }
}

// Section 8.1's machines: two Xeons 6151, 6230 and 8272CL, two EPYC 7H12, four Kunpeng 920.
TEST(TopoTreeTest, EnumeratesTheMachinesOfThePaper) {
  for (const char* text : {"pack:2 numa:1 l3:1 core:18 pu:2", "pack:2 numa:1 l3:1 core:20 pu:2",
                           "pack:2 numa:1 l3:1 core:24 pu:2", "pack:2 numa:1 l3:16 core:4 pu:2",
                           "pack:4 numa:2 l3:1 core:24 pu:1"}) {
    const TopoTree tree = tree_of(text);
    const std::vector<TopoTree> trees = grouped_trees(tree);
    EXPECT_GT(trees.size(), 10U) << text;
    for (const TopoTree& grouped : trees) EXPECT_EQ(grouped.cores().size(), tree.cores().size());
  }
}

}  // namespace
}  // namespace sluice
