#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/cuda/device.h"

#ifdef SLUICE_CUDA_EMULATION
#include <vector>
#endif

namespace sluice::cuda {

/// One thread's copies of 16 bytes from device to shared memory, on their way while it does
/// something else (cp.async; sm_80). Others see them after wait() and a barrier. The emulation
/// copies no sooner than wait() and until then leaves NaN, so that a missing one shows.
class AsyncCopies {
 public:
  /// Both aligned to 16 bytes. `from` null: zeros.
  __device__ void start(void* to, const void* from);
  /// For all that this thread started.
  __device__ void wait();

#ifdef SLUICE_CUDA_EMULATION
 private:
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> under_way_;
#endif
};

#ifdef SLUICE_CUDA_EMULATION

inline void AsyncCopies::start(void* to, const void* from) {
  std::memset(to, 0xff, 16);
  under_way_.push_back({to, from});
}

inline void AsyncCopies::wait() {
  for (const Copy& copy : under_way_) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
  under_way_.clear();
}

#else

__device__ inline void AsyncCopies::start(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = from == nullptr ? 0 : 16;  // that are read
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes)
               : "memory");
#else
  __trap();  // the caller asks for the device's generation first
#endif
}

__device__ inline void AsyncCopies::wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif

}  // namespace sluice::cuda
