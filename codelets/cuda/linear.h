#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"
#include "codelets/kernels/linear.h"

namespace sluice::cuda {

/// linear() and gated_linear() of codelets/kernels/linear.h for GPUs, over the same packed weights.
/// All pointers of a call are device memory; `scratch` is as many bytes as the call's
/// linear_scratch_bytes() says, aligned to 256 bytes. A pointer that is not known yet when that is
/// asked counts as aligned to 16 bytes, and must be.
///
/// Up to 64 rows over strips of bf16 columns (sm_80 on): the strips are read as they are, once, by
/// mma instructions. Otherwise the weight is unpacked piece by piece and multiplied by Blas; on
/// sm_75 bf16 becomes f16. Results do not vary from run to run. Asynchronous on the context's
/// stream. Throws Error when a launch fails or the CPU's layout is not made of blocks.
void linear(const Context& gpu, const LinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const LinearCall& call);

void gated_linear(const Context& gpu, const GatedLinearCall& call, std::byte* scratch);
std::size_t linear_scratch_bytes(const Context& gpu, const GatedLinearCall& call);

}  // namespace sluice::cuda
