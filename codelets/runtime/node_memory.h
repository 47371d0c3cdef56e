#pragma once

#include <starpu.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {

// StarPU numbers the memories of a machine: a *node* is such a number.

inline constexpr unsigned main_memory_node = STARPU_MAIN_RAM;
/// Stands for a memory that the machine does not have.
inline constexpr unsigned no_memory_node = STARPU_MAXNODES;

/// Of a node's memory, bytes that StarPU may use at all.
inline std::uint64_t node_total_bytes(unsigned node) {
  return static_cast<std::uint64_t>(starpu_memory_get_total(node));
}
/// That it uses.
inline std::uint64_t node_used_bytes(unsigned node) { return starpu_memory_get_used(node); }
/// That it has left.
inline std::uint64_t node_free_bytes(unsigned node) {
  return static_cast<std::uint64_t>(std::max<starpu_ssize_t>(0, starpu_memory_get_available(node)));
}

/// Memory of a node, which counts against its limit; null when there is none.
inline void* allocate_on_node(std::size_t bytes, unsigned node) {
  return reinterpret_cast<void*>(starpu_malloc_on_node(node, bytes));
}
inline void release_on_node(void* memory, std::size_t bytes, unsigned node) {
  starpu_free_on_node(node, reinterpret_cast<uintptr_t>(memory), bytes);
}

/// The node of the worker that calls.
inline unsigned worker_node() { return starpu_worker_get_local_memory_node(); }

}  // namespace sluice
