#include "codelets/runtime/staging_memory.h"

#include <starpu.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "base/direct_file.h"

namespace sluice {
namespace {

/// Smaller blocks come from the heap.
constexpr std::size_t smallest_kept_bytes = std::size_t{256} << 10;

StagingMemory* of_starpu = nullptr;

int allocate(unsigned /*node*/, void** memory, std::size_t size, int flags) noexcept {
  try {
    const bool pinned = (flags & STARPU_MALLOC_PINNED) != 0 && starpu_cuda_worker_get_count() > 0;
    *memory = of_starpu->take(size, pinned);
    return 0;
  } catch (const std::exception&) {
    *memory = nullptr;
    return -ENOMEM;
  }
}

int release(unsigned /*node*/, void* memory, std::size_t size, int /*flags*/) noexcept {
  of_starpu->give_back(memory, size);
  return 0;
}

}  // namespace

StagingMemory::StagingMemory(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {
  of_starpu = this;
  starpu_malloc_set_hooks(allocate, release);
}

StagingMemory::~StagingMemory() {
  starpu_malloc_set_hooks(nullptr, nullptr);
  of_starpu = nullptr;
}

void* StagingMemory::take(std::size_t size_bytes, bool pinned) {
  if (size_bytes < smallest_kept_bytes) {
    void* memory = std::aligned_alloc(DirectFile::alignment, DirectFile::aligned(size_bytes));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  const std::size_t size = DirectFile::aligned(size_bytes);
  std::unique_ptr<Block> block = take_free(size);
  if (!block) {
    try {
      block = std::make_unique<Block>();
      block->memory = Buffer(size);
      if (pinned) block->pin.pin(block->memory.data(), size);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      held_bytes_ -= size;
      throw;
    }
  }
  void* memory = block->memory.data();
  const std::lock_guard lock(mutex_);
  used_.emplace(memory, std::move(block));
  return memory;
}

std::unique_ptr<StagingMemory::Block> StagingMemory::take_free(std::size_t size_bytes) {
  Blocks surplus;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (auto node = free_.extract(size_bytes)) return std::move(node.mapped());
  surplus = take_surplus(size_bytes);
  held_bytes_ += size_bytes;
  ++num_blocks_made_;
  return nullptr;
}

StagingMemory::Blocks StagingMemory::take_surplus(std::size_t size_bytes) {
  Blocks surplus;
  while (!free_.empty() && held_bytes_ + size_bytes > limit_bytes_) {
    held_bytes_ -= free_.begin()->first;
    surplus.insert(free_.extract(free_.begin()));
  }
  return surplus;
}

void StagingMemory::give_back(void* memory, std::size_t size_bytes) {
  if (size_bytes < smallest_kept_bytes) {
    std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc)
    return;
  }
  Blocks surplus;  // freed without the lock
  const std::lock_guard lock(mutex_);
  auto node = used_.extract(memory);
  free_.emplace(DirectFile::aligned(size_bytes), std::move(node.mapped()));
  surplus = take_surplus(0);
}

std::uint64_t StagingMemory::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

std::int64_t StagingMemory::num_blocks_made() const {
  const std::lock_guard lock(mutex_);
  return num_blocks_made_;
}

}  // namespace sluice
