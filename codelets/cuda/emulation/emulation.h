#pragma once

// CUDA's device side on the CPU, for tests of our kernels where no GPU is: a thread is a fiber, a
// block's fibers take turns, blocks run one after the other in a shuffled order. It proves what a
// kernel computes and that its barriers match; it says nothing of speed, of races between blocks,
// or of memory order. Include it after <cuda_runtime.h>, by way of codelets/cuda/device.h.

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

namespace sluice::cuda::emulation {

struct Grid {
  const char* kernel;
  dim3 blocks;
  dim3 threads;
  std::size_t dynamic_bytes;
  bool early = false;
};

/// Runs `body` once a thread of the grid. Aborts with a line on stderr when threads wait for each
/// other in vain, when one of an early kernel ends without wait_for_last(), or when a block has
/// more than 1024 threads or 227 KB of dynamic shared memory.
void run(const Grid& grid, const std::function<void()>& body);
/// The same from within a stream, which may put it off: it is being captured.
void launch(cudaStream_t stream, const Grid& grid, std::function<void()> body);

/// Of the thread that calls.
struct Place {
  dim3 thread, block, block_size, grid_size;
};
const Place& place();
void* dynamic_shared_memory();

/// The calling thread has waited for the kernel before.
void note_wait();

/// All threads of the block that have not ended meet.
void block_barrier();
/// The same for the lanes of `mask`, which names the calling one.
void warp_barrier(unsigned mask);
/// Lane of the calling thread within its warp.
int lane();
/// Every lane of `mask` leaves `bytes` (at most 64) at `mine`; those of lane `from` (of this warp)
/// are copied to `theirs`.
void exchange(unsigned mask, const void* mine, void* theirs, std::size_t bytes, int from);

template <typename T>
T shuffle(unsigned mask, T value, int from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T result;
  exchange(mask, &value, &result, sizeof(T), from);
  return result;
}

}  // namespace sluice::cuda::emulation

// NOLINTBEGIN: CUDA's names, spelt as CUDA spells them
#define threadIdx (::sluice::cuda::emulation::place().thread)
#define blockIdx (::sluice::cuda::emulation::place().block)
#define blockDim (::sluice::cuda::emulation::place().block_size)
#define gridDim (::sluice::cuda::emulation::place().grid_size)
#undef __shared__
#define __shared__ static
#undef __restrict__
#define __restrict__
#undef __launch_bounds__
#define __launch_bounds__(...)

inline void __syncthreads() { ::sluice::cuda::emulation::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  ::sluice::cuda::emulation::warp_barrier(mask);
}
inline void __threadfence() {}
inline void __threadfence_system() {}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = ::sluice::cuda::emulation::lane();
  return ::sluice::cuda::emulation::shuffle(mask, value, lane / width * width + from % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  static_cast<void>(width);
  return ::sluice::cuda::emulation::shuffle(mask, value, ::sluice::cuda::emulation::lane() ^ with);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = ::sluice::cuda::emulation::lane();
  const bool inside = lane % width + delta < width;
  return ::sluice::cuda::emulation::shuffle(mask, value, inside ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = ::sluice::cuda::emulation::lane();
  const bool inside = lane % width - delta >= 0;
  return ::sluice::cuda::emulation::shuffle(mask, value, inside ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  unsigned result = 0;
  for (int from = 0; from < 32; ++from) {
    if ((mask >> from & 1U) == 0) continue;
    result |= static_cast<unsigned>(::sluice::cuda::emulation::shuffle(mask, value, from)) << from;
  }
  return result;
}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, !value) == 0; }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) {
  return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float value) { return 1.0F / std::sqrt(value); }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T, typename U>
T atomicAdd(T* to, U value) {
  const T before = *to;
  *to = before + static_cast<T>(value);
  return before;
}
template <typename T>
T atomicMax(T* to, T value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}
template <typename T>
T atomicMin(T* to, T value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}
template <typename T>
T atomicOr(T* to, T value) {
  const T before = *to;
  *to = before | value;
  return before;
}
template <typename T>
T atomicExch(T* to, T value) {
  const T before = *to;
  *to = value;
  return before;
}
template <typename T>
T atomicCAS(T* to, T expected, T value) {
  const T before = *to;
  if (before == expected) *to = value;
  return before;
}
// NOLINTEND
