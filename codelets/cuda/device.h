#pragma once

// What every .cu file includes: device code, and how it is launched. Compiled by nvcc, or as plain
// C++ with SLUICE_CUDA_EMULATION, where the same kernels run on the CPU (emulation/emulation.h).

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "codelets/cuda/context.h"

#ifdef SLUICE_CUDA_EMULATION
#include "codelets/cuda/emulation/emulation.h"
#endif

namespace sluice::cuda {

/// Threads of a warp.
constexpr int warp_threads = 32;
/// All lanes of a warp, for shuffles.
constexpr unsigned all_lanes = 0xffffffffU;

/// How a kernel is launched.
struct LaunchShape {
  dim3 blocks{1};
  dim3 threads{1};                ///< of a block
  std::size_t dynamic_bytes = 0;  ///< of shared memory, see dynamic_shared()
  /// Whether its blocks may start while the kernel before it runs, once all of that one's have
  /// called let_next_start(): it calls wait_for_last(). Only where starts_early() says so.
  bool early = false;
};

/// Starts `kernel` on the stream. A grid without blocks is no launch. Throws Error when CUDA
/// refuses; `name` is the kernel's, for the message.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            cudaStream_t stream, const Arguments&... arguments) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0) return;
#ifdef SLUICE_CUDA_EMULATION
  emulation::launch(
      stream, {name, shape.blocks, shape.threads, shape.dynamic_bytes, shape.early},
      [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); });
#else
  constexpr std::size_t without_asking_bytes = 48 << 10;
  if (shape.dynamic_bytes > without_asking_bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.dynamic_bytes)),
          name);
  }
  // Its own status, as the thread's last error may be another call's: a poll's "not ready".
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.dynamic_bytes;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  if (shape.early) {
    config.attrs = &early;
    config.numAttrs = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
#endif
}

/// Whether kernels may be launched early on a device: it runs what was compiled for the newest of
/// our architectures that is not newer than itself, and from 9.0 on that can wait.
inline bool starts_early(const Context& gpu) {
#ifdef SLUICE_CUDA_EMULATION
  constexpr int compiled[] = {900};
#else
  constexpr int compiled[] = {__CUDA_ARCH_LIST__};  // ascending
#endif
  int runs = 0;
  for (const int architecture : compiled) {
    if (architecture <= 10 * gpu.compute_capability) runs = architecture;
  }
  return runs >= 900;
}

/// From here on blocks of the stream's next kernel may start, if that one is launched early: where
/// all blocks have come here, or ended, and there is room beside them (sm_90; nothing before).
__device__ inline void let_next_start() {
#if !defined(SLUICE_CUDA_EMULATION) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Until all kernels before this one have ended and what they wrote is there. Before it a kernel
/// that is launched early writes nothing, and reads only what no kernel of its task writes.
__device__ inline void wait_for_last() {
#ifdef SLUICE_CUDA_EMULATION
  emulation::note_wait();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// What a kernel found; the first one stays. Who sees the code sees the rest.
__device__ inline void record(DeviceFailure* failure, DeviceFailure::Code code, std::int64_t row,
                              std::int64_t value) {
  if (atomicCAS(&failure->taken, 0, 1) != 0) return;
  failure->row = static_cast<std::int32_t>(row);
  failure->value = value;
  __threadfence_system();
  *const_cast<volatile std::int32_t*>(&failure->code) = code;
}

/// The block's dynamic shared memory, aligned to 16 bytes; every use names the same memory.
template <typename T>
__device__ T* dynamic_shared() {
#ifdef SLUICE_CUDA_EMULATION
  return reinterpret_cast<T*>(emulation::dynamic_shared_memory());
#else
  extern __shared__ __align__(16) unsigned char sluice_dynamic_shared_memory[];
  return reinterpret_cast<T*>(sluice_dynamic_shared_memory);
#endif
}

}  // namespace sluice::cuda
