#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/memory.h"
#include "codelets/runtime/gpu.h"

namespace sluice {

/// The main memory that StarPU allocates: what is read from a disk, and values between tasks. Large
/// blocks are kept for the next of their size, as having the system clear and map memory, and
/// pinning it for a GPU, takes about as long as reading a disk into it does.
///
/// StarPU's own while it lives, from before StarPU starts until after it has stopped; one at a
/// time.
class StagingMemory {
 public:
  /// What is free is given back to the system as soon as it and what is in use exceed
  /// `limit_bytes`.
  explicit StagingMemory(std::uint64_t limit_bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  /// `size_bytes`, aligned for DirectFile, with any content. What is large is `pinned` for a GPU,
  /// which must be there then. Thread-safe. Throws an exception when there is no memory.
  void* take(std::size_t size_bytes, bool pinned);
  /// What take() returned for so many bytes. Thread-safe.
  void give_back(void* memory, std::size_t size_bytes);

  /// Of large blocks, in use or free.
  std::uint64_t held_bytes() const;
  /// How often a large block was asked of the system.
  std::int64_t num_blocks_made() const;

 private:
  struct Block {
    Buffer memory;
    PinnedMemory pin;
  };
  using Blocks = std::multimap<std::size_t, std::unique_ptr<Block>>;

  /// A free block of the size, or null: then one may be made, which is counted already.
  std::unique_ptr<Block> take_free(std::size_t size_bytes);
  /// Free blocks that must go before `size_bytes` more fit; with the mutex held.
  Blocks take_surplus(std::size_t size_bytes);

  const std::uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, std::unique_ptr<Block>> used_;
  Blocks free_;  ///< by size
  std::uint64_t held_bytes_ = 0;
  std::int64_t num_blocks_made_ = 0;
};

}  // namespace sluice
