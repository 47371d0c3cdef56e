#pragma once

#include "codelets/cuda/device.h"

namespace sluice::cuda {

/// Bits of a float that is no NaN: larger ones for larger floats, the same for -0 and 0.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);  // -0 becomes 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace sluice::cuda
