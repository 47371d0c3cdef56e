#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "base/memory.h"

namespace sluice {

/// Has the pages of memory that nothing has touched yet come from these NUMA nodes in turn. From a
/// single one or not at all; of several, the system takes others once they are full. Throws Error
/// when it refuses.
void interleave(const Buffer& buffer, const std::vector<int>& nodes);

/// How many of the memory's pages lie on which NUMA node, as the system says (move_pages); pages
/// that nothing has touched are on none. Throws Error when the system does not say.
std::map<int, std::uint64_t> pages_by_node(const Buffer& buffer);

/// Whether a NUMA node has processors, as the system under `root` says; true where it says nothing.
/// Not to be had from hwloc, which takes the nearest processors for those of a node without any.
bool has_processors(int node, const std::filesystem::path& root = "/");

/// Memory of a NUMA node that nothing uses now, page cache included as it can be given up, less
/// what the system keeps back (its high watermark: who is bound to the node and takes more is
/// killed); 0 when there is no such node. Bytes.
std::uint64_t free_node_bytes(int node, const std::filesystem::path& root = "/");

}  // namespace sluice
