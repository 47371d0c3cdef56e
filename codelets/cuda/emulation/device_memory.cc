// The part of CUDA's runtime library that has to do with memory.
#include "codelets/cuda/emulation/device_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "codelets/cuda/emulation/device_settings.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace sluice::cuda::emulation {
namespace {

constexpr std::size_t alignment = 256;
/// What a kernel reads before it was written should hurt: NaN in every type that we use.
constexpr int poison = 0xff;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "CUDA emulation: %s\n", what);
  std::abort();
}

/// The device's memory, first fit.
class Memory {
 public:
  static Memory& instance() {
    static Memory& memory = *new Memory;  // outlives whatever static data is in it
    return memory;
  }

  /// Null when there is no room.
  void* allocate(std::size_t bytes) {
    // What lies between two blocks is nobody's.
    const std::size_t taken = (bytes + alignment - 1) / alignment * alignment + alignment;
    void* memory = nullptr;
    {
      const std::lock_guard lock(mutex_);
      for (auto at = free_.begin(); at != free_.end(); ++at) {
        const auto [offset, size] = *at;
        if (size < taken) continue;
        free_.erase(at);
        if (size > taken) free_.emplace(offset + taken, size - taken);
        used_.emplace(offset, Block{taken, bytes});
        used_bytes_ += taken;
        memory = base_ + offset;
        break;
      }
    }
    if (memory == nullptr) return nullptr;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    const OpenMemory open;
    std::memset(memory, poison, bytes);
    return memory;
  }

  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    std::size_t offset = offset_of(memory);
    const auto block = used_.find(offset);
    if (block == used_.end()) give_up("cudaFree() of what cudaMalloc() did not give");
    std::size_t size = block->second.taken;
    ASAN_POISON_MEMORY_REGION(memory, size);
    used_.erase(block);
    used_bytes_ -= size;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_.emplace(offset, size);
  }

  bool contains(const void* memory) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto base = reinterpret_cast<std::uintptr_t>(base_);
    return address >= base && address < base + total_bytes_;
  }

  /// [memory, memory + bytes) is one block's.
  bool holds(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!contains(memory)) return false;
    const std::size_t offset = offset_of(memory);
    auto block = used_.upper_bound(offset);
    if (block == used_.begin()) return false;
    --block;
    return offset + bytes <= block->first + block->second.bytes;
  }

  std::size_t total_bytes() const { return total_bytes_; }
  std::size_t free_bytes() {
    const std::lock_guard lock(mutex_);
    return total_bytes_ - used_bytes_;
  }

  void open() {
    if (key_ >= 0) {
      if (num_open_here++ == 0) pkey_set(key_, 0);
      return;
    }
    const std::lock_guard lock(open_mutex_);
    if (num_open_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (key_ >= 0) {
      if (--num_open_here == 0) pkey_set(key_, PKEY_DISABLE_ACCESS);
      return;
    }
    const std::lock_guard lock(open_mutex_);
    if (--num_open_ == 0) protect(PROT_NONE);
  }

 private:
  struct Block {
    std::size_t taken;
    std::size_t bytes;  ///< that were asked for
  };

  Memory() : total_bytes_(settings().memory_bytes) {
    void* mapped =
        mmap(nullptr, total_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) give_up("the system has no address space for the device's memory");
    base_ = static_cast<std::byte*>(mapped);
    if (key_ >= 0 && pkey_mprotect(base_, total_bytes_, PROT_READ | PROT_WRITE, key_) != 0)
      give_up("pkey_mprotect() failed");
    ASAN_POISON_MEMORY_REGION(base_, total_bytes_);
    free_.emplace(0, total_bytes_);
  }

  std::size_t offset_of(const void* memory) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(memory) - base_);
  }
  void protect(int how) const {
    if (mprotect(base_, total_bytes_, how) != 0) give_up("mprotect() failed");
  }

  std::size_t total_bytes_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< size by offset
  std::map<std::size_t, Block> used_;        ///< by offset
  std::size_t used_bytes_ = 0;
  /// A key to the memory, which each thread turns for itself, in nanoseconds; negative where the
  /// processor has none, and the system changes every page for all threads.
  int key_ = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  inline static thread_local int num_open_here = 0;
  std::mutex open_mutex_;
  int num_open_ = 0;
};

/// Pinned host memory: what cudaHostAlloc() gave, and what was registered.
class Pinned {
 public:
  static Pinned& instance() {
    static Pinned& pinned = *new Pinned;  // like Memory's
    return pinned;
  }
  bool add(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = ranges_.lower_bound(address);
    if (next != ranges_.end() && next->first < address + bytes) return false;
    if (next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second > address)
      return false;
    ranges_.emplace(address, bytes);
    return true;
  }
  bool remove(const void* memory) {
    const std::lock_guard lock(mutex_);
    return ranges_.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1;
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> ranges_;  ///< size by address
};

void* allocate_host(std::size_t bytes) {
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory != nullptr) std::memset(memory, poison, bytes);
  return memory;
}

/// The end of a copy whose kind says that it is the device's, or that it is the host's.
void check_side(const void* memory, std::size_t bytes, bool on_device) {
  Memory& device = Memory::instance();
  if (on_device && !device.holds(memory, bytes))
    give_up("a copy's device side is no device memory, or is longer than its block");
  if (!on_device && device.contains(memory)) give_up("a copy's host side is device memory");
}

// CUDA could put copies into a graph. No kernel of ours that is captured makes one.

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t status = status_beside_capture(); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  if (kind != cudaMemcpyDefault) {
    check_side(to, bytes, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
    check_side(from, bytes, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
  }
  const OpenMemory open;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t fill(void* memory, int value, std::size_t bytes) {
  if (const cudaError_t status = status_beside_capture(); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  check_side(memory, bytes, true);
  const OpenMemory open;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

}  // namespace

OpenMemory::OpenMemory() { Memory::instance().open(); }
OpenMemory::~OpenMemory() { Memory::instance().close(); }

bool is_device_memory(const void* memory) { return Memory::instance().contains(memory); }

}  // namespace sluice::cuda::emulation

namespace emulation = sluice::cuda::emulation;

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): ours say what they are
extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  if (const cudaError_t status = emulation::status_of_context(); status != cudaSuccess)
    return status;
  *memory = emulation::Memory::instance().allocate(bytes);
  return *memory == nullptr ? emulation::fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  if (const cudaError_t status = emulation::status_of_context(); status != cudaSuccess)
    return status;
  if (memory == nullptr) return cudaSuccess;
  if (emulation::is_device_memory(memory)) {
    emulation::Memory::instance().release(memory);
  } else {
    std::free(memory);  // managed
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const cudaError_t status = emulation::status_of_context(); status != cudaSuccess)
    return status;
  *free_bytes = emulation::Memory::instance().free_bytes();
  *total_bytes = emulation::Memory::instance().total_bytes();
  return cudaSuccess;
}

cudaError_t cudaMallocManaged(void** memory, std::size_t bytes, unsigned /*flags*/) {
  *memory = emulation::allocate_host(bytes);
  return *memory == nullptr ? emulation::fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  *memory = emulation::allocate_host(bytes);
  if (*memory == nullptr) return emulation::fail(cudaErrorMemoryAllocation);
  emulation::Pinned::instance().add(*memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  if (memory == nullptr) return cudaSuccess;
  if (!emulation::Pinned::instance().remove(memory)) return emulation::fail(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned /*flags*/) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  return emulation::Pinned::instance().add(memory, bytes)
             ? cudaSuccess
             : emulation::fail(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* memory) {
  return emulation::Pinned::instance().remove(memory)
             ? cudaSuccess
             : emulation::fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return emulation::copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return emulation::copy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return emulation::fill(memory, value, bytes);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  return emulation::fill(memory, value, bytes);
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
