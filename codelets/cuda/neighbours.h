#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codelets/cuda/device.h"

namespace sluice::cuda {

// Elements that lie side by side, read and written several at a time.

/// Whether 16 bytes may be read or written at once.
inline bool is_aligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % sizeof(float4) == 0;
}

/// Two floats as bf16, the first in the lower half, rounded to nearest even.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
#if !defined(SLUICE_CUDA_EMULATION) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
#endif
}

/// Four of them, from element 4 `at` of `to` on, which is f32 or bf16.
__device__ inline void put_four(const float4& values, DType dtype, void* to, std::int64_t at) {
  if (dtype == DType::f32) {
    static_cast<float4*>(to)[at] = values;
  } else {
    static_cast<uint2*>(to)[at] =
        make_uint2(bf16_pair(values.x, values.y), bf16_pair(values.z, values.w));
  }
}

/// 16 bytes: eight k of one row of x, or one k-pair of four neighbouring columns of W.
struct alignas(16) Words {
  std::uint32_t word[4];
};

/// Of a weight that passes by once: it should not push x out of the first-level cache.
__device__ inline Words load_streamed(const Words* from) {
#if defined(SLUICE_CUDA_EMULATION) || __CUDA_ARCH__ < 800
  return *from;
#else
  Words to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
               : "l"(from));
  return to;
#endif
}

}  // namespace sluice::cuda
