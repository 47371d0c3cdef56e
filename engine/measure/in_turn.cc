#include "engine/measure/in_turn.h"

#include <algorithm>

#include "base/cpu.h"
#include "base/memory.h"

namespace sluice {
namespace {

/// Bytes that must pass through the caches before an operand may be used again. A virtual machine
/// may see caches that are large for its memory.
std::uint64_t flushing_bytes() {
  constexpr std::uint64_t least = std::uint64_t{64} << 20;
  const std::uint64_t wanted = 16 * read_cpu_topology().last_level_cache_bytes;
  return std::max(least, std::min(wanted, available_memory_bytes() / 16));
}

}  // namespace

std::size_t operands_in_turn(std::size_t each_bytes, std::uint64_t working_set_bytes) {
  const std::uint64_t bytes =
      std::max<std::uint64_t>(1, std::min(flushing_bytes(), working_set_bytes));
  return (bytes - 1) / each_bytes + 1;
}

}  // namespace sluice
