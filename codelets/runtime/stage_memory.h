#pragma once

#include <cstddef>

#include "base/memory.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
/// The same on a GPU, aligned to 256 bytes. Kernels have it from codelets/cuda/context.h.
// NOLINTNEXTLINE(readability-redundant-declaration): CUDA's headers are not needed to name it
std::byte* stage_memory(const Context& gpu, std::size_t bytes);
}  // namespace cuda

/// Memory for what passes between the kernels of one task, until the worker's next one; the kernels
/// themselves have another workspace.
inline std::byte* stage_memory(const CpuContext& /*cpu*/, std::size_t bytes) {
  thread_local Workspace scratch;
  return scratch.reserve(bytes);
}

}  // namespace sluice
