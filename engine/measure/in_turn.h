#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace sluice {

/// How many operands of so many bytes must be taken in turn for each to come from memory and not
/// from a cache; no more than a working set has, which may fit into a cache.
std::size_t operands_in_turn(std::size_t each_bytes, std::uint64_t working_set_bytes =
                                                         std::numeric_limits<std::uint64_t>::max());

/// Operands of one kind, taken in turn.
class Turn {
 public:
  explicit Turn(std::size_t count) : count_(count) {}
  std::size_t count() const { return count_; }
  std::size_t next() { return next_++ % count_; }

 private:
  std::size_t count_;
  std::size_t next_ = 0;
};

}  // namespace sluice
