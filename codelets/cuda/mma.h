#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codelets/cuda/device.h"

namespace sluice::cuda {

/// One warp's D = A B + C of mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with
/// floating point type"), spread over the registers of its lanes. With lane = 4 group + place, and
/// a word two neighbouring k of one row or column, the lower k in the lower half:
///
/// A [16 rows, 16 k]:    word 0: row group,     k 2 place and + 1;  word 2: the same row, k + 8
///                       word 1: row group + 8, k 2 place and + 1;  word 3: the same row, k + 8
/// B [16 k, 8 columns]:  word 0: column group,  k 2 place and + 1;  word 1: k + 8
/// C, D [16 rows, 8 columns] in f32:
///                       value 0, 1: row group,     columns 2 place and + 1
///                       value 2, 3: row group + 8, columns 2 place and + 1
///
/// Which k is which does not matter as long as A and B agree.
struct MmaA {
  std::uint32_t word[4];
};
struct MmaB {
  std::uint32_t word[2];
};
struct MmaD {
  float value[4];
};

#ifdef SLUICE_CUDA_EMULATION

namespace mma_emulation {

/// What a lane brings; all of a block's lie side by side (its threads share one of the CPU's).
struct Fragments {
  MmaA a;
  MmaB b;
};
inline Fragments* fragments() {
  static thread_local Fragments of_block[1024];
  return of_block;
}

template <DType dtype>
float half_of(std::uint32_t word, unsigned half) {
  const auto bits = static_cast<std::uint16_t>(word >> (16 * half));
  return dtype == DType::bf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

}  // namespace mma_emulation

/// d += A B. `dtype` (bf16 or f16) is that of A and B. All lanes of the warp take part. sm_80.
template <DType dtype>
void mma_16x8x16(MmaD& d, const MmaA& a, const MmaB& b) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned lane = thread % 32;
  mma_emulation::Fragments* warp = mma_emulation::fragments() + (thread - lane);
  warp[lane] = {a, b};
  __syncwarp();
  for (unsigned v = 0; v < 4; ++v) {
    const unsigned row = lane / 4 + v / 2 * 8;
    const unsigned column = lane % 4 * 2 + v % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned from = k % 8 / 2;  // place of the lanes that hold it
      const std::uint32_t in_a = warp[row % 8 * 4 + from].a.word[row / 8 + k / 8 * 2];
      const std::uint32_t in_b = warp[column * 4 + from].b.word[k / 8];
      sum +=
          mma_emulation::half_of<dtype>(in_a, k % 2) * mma_emulation::half_of<dtype>(in_b, k % 2);
    }
    d.value[v] += sum;
  }
  __syncwarp();
}

#else

/// d += A B. `dtype` (bf16 or f16) is that of A and B. All lanes of the warp take part. sm_80.
template <DType dtype>
__device__ inline void mma_16x8x16(MmaD& d, const MmaA& a, const MmaB& b) {
  static_assert(dtype == DType::bf16 || dtype == DType::f16);
#if __CUDA_ARCH__ >= 800
  if constexpr (dtype == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  }
#else
  __trap();  // the caller asks for the device's generation first
#endif
}

#endif

}  // namespace sluice::cuda
