#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"
#include "codelets/kernels/linear.h"

namespace sluice::cuda {

/// linear() and gated_linear() of codelets/kernels/linear.h for GPUs, over the same packed weights:
///   up to 64 rows, bf16 strips, sm_80 on   strips read as they are, once, by mma instructions
///   else                                   unpacked piece by piece for Blas; bf16 as f16 on sm_75
/// Codes are unpacked, too, whatever the rows: each value by its scale, in the product's type.
/// Pointers are device memory; `scratch` has linear_scratch_bytes(), aligned to 256 bytes. Pointers
/// not known when these are asked count as aligned to 16 bytes, and must be. Repeatable.
/// Asynchronous. Throws Error when a launch fails or the CPU's layout is not made of blocks.
void linear(const Context& gpu, const LinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const LinearCall& call);

void gated_linear(const Context& gpu, const GatedLinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const GatedLinearCall& call);

}  // namespace sluice::cuda
