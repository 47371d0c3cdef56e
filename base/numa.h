#pragma once

#include <cstdint>
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

/// Memory of a NUMA node that nothing uses now, page cache included as it can be given up; 0 when
/// there is no such node. Bytes.
std::uint64_t free_node_bytes(int node);

}  // namespace sluice
