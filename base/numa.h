#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "base/memory.h"

namespace sluice {

/// What happens to pages that were touched before they were bound.
enum class TouchedPages : std::uint8_t { stay, move };

/// Has the pages of memory that nothing has touched yet come from these NUMA nodes in turn; small
/// pages, where each node would have fewer than two huge ones. From a single one or not at all; of
/// several, the system takes others once they are full. Throws Error when it refuses.
void interleave(const Buffer& buffer, const std::vector<int>& nodes,
                TouchedPages touched = TouchedPages::stay);
/// The same; where the system refuses, a line in the log says that memory lies where it is first
/// touched. Does nothing without nodes.
void interleave_if_allowed(const Buffer& buffer, const std::vector<int>& nodes);

/// A part of some memory, and the NUMA node where it is to lie.
struct NodeShare {
  int node = 0;
  double share = 1;  ///< of the bytes; parts lie one behind the other, and their shares add up to 1

  bool operator==(const NodeShare&) const = default;
};
/// Of the pages of a part, what lies on its node.
struct PartPages {
  NodeShare part;
  std::uint64_t asked = 0;  ///< pages that were looked at
  std::uint64_t found = 0;  ///< of those, on the part's node
};
/// The page at which each part begins, and the one behind the last.
std::vector<std::uint64_t> first_pages(std::uint64_t num_pages,
                                       const std::vector<NodeShare>& parts);
/// Has the pages of memory that nothing has touched yet come from the nodes of its parts: from
/// there or not at all. Throws Error when the system refuses.
void bind_parts(const Buffer& buffer, const std::vector<NodeShare>& parts,
                TouchedPages touched = TouchedPages::stay);

/// While it lives, memory that the calling thread is the first to touch, and that is bound to no
/// node, comes from this one as long as it has some. Throws Error when the system refuses.
class PreferredNode {
 public:
  explicit PreferredNode(int node);
  ~PreferredNode();
  PreferredNode(const PreferredNode&) = delete;
  PreferredNode& operator=(const PreferredNode&) = delete;
};
/// Has memory that nothing has touched yet come in small pages, which lie on a node each.
void use_small_pages(const Buffer& buffer);
/// Touches the pages of bytes [begin, end) of new memory, which stay zero; of one that `begin` is
/// in the middle of, the rest is another's to touch.
void touch_new_pages(const Buffer& buffer, std::uint64_t begin, std::uint64_t end);

/// Pages that the memory has, touched or not.
std::uint64_t num_pages(const Buffer& buffer);

/// How many of the memory's pages lie on which NUMA node, as the system says (move_pages); pages
/// that nothing has touched are on none. Of many pages only every so many-th is looked at: asking
/// takes 0.3 us for each. Throws Error when the system does not say.
std::map<int, std::uint64_t> pages_by_node(const Buffer& buffer, std::uint64_t every = 1);
/// The same of the pages in [first, end).
std::map<int, std::uint64_t> pages_by_node(const Buffer& buffer, std::uint64_t every,
                                           std::uint64_t first, std::uint64_t end);

/// Whether a NUMA node has processors, as the system under `root` says; true where it says nothing.
/// Not to be had from hwloc, which takes the nearest processors for those of a node without any.
bool has_processors(int node, const std::filesystem::path& root = "/");

/// Memory of a NUMA node that nothing uses now, page cache included as it can be given up, less
/// what the system keeps back (its high watermark: who is bound to the node and takes more is
/// killed); 0 when there is no such node. Bytes.
std::uint64_t free_node_bytes(int node, const std::filesystem::path& root = "/");

}  // namespace sluice
