#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codelets/cuda/device.h"

namespace sluice::cuda {

/// Whether neighbours may be read and written as many at a time as a thread can: 16 bytes.
inline bool is_aligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % sizeof(float4) == 0;
}

/// Four neighbours, from element 4 `at` of `to` on, which is f32 or bf16.
__device__ inline void put_four(const float4& values, DType dtype, void* to, std::int64_t at) {
  struct alignas(8) BFloat16x4 {
    BFloat16 of[4];
  };
  if (dtype == DType::f32) {
    static_cast<float4*>(to)[at] = values;
  } else {
    static_cast<BFloat16x4*>(to)[at] = {
        {to_bf16(values.x), to_bf16(values.y), to_bf16(values.z), to_bf16(values.w)}};
  }
}

}  // namespace sluice::cuda
