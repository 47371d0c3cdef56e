#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"
#include "codelets/kernels/linear.h"

namespace sluice::cuda {

/// linear() and gated_linear() of codelets/kernels/linear.h for GPUs, over the same packed weights:
///   up to 64 rows of bf16, sm_80 on   strips, of bf16 or of codes, read as they are, once, by mma
///                                     instructions; a gated pair's of one format
///   else                              unpacked piece by piece for Blas; bf16 as f16 on sm_75
/// Read as they are, codes are exact, and scales apply to sums in f32. Unpacked, each value is by
/// its scale, in the product's type.
///
/// A row's bits do not depend on the other rows among up to 64, if the weight has codes; else among
/// up to 16, and among 17 to 64, as blocks then share depth otherwise. More rows have others.
/// Pointers are device memory; `scratch` has linear_scratch_bytes(), aligned to 256 bytes. Pointers
/// not known when these are asked count as aligned to 16 bytes, and must be. Repeatable.
/// Asynchronous. Throws Error when a launch fails or the CPU's layout is not made of blocks.
void linear(const Context& gpu, const LinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const LinearCall& call);

void gated_linear(const Context& gpu, const GatedLinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const GatedLinearCall& call);

}  // namespace sluice::cuda
