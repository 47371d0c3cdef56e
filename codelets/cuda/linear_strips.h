#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"
#include "codelets/cuda/linear_job.h"

namespace sluice::cuda {

/// Few rows: strips of bf16 or of codes are multiplied as they are, by tensor cores.
bool strips_serve(const Context& gpu, const LinearJob& job);
std::size_t strips_scratch_bytes(const Context& gpu, const LinearJob& job);
void run_strips(const Context& gpu, const LinearJob& job, std::byte* scratch);

}  // namespace sluice::cuda
