#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "codelets/runtime/handle_ref.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the two codelets that move pages of KV between tiers, a layer at a time: pages are
/// gathered beside the slab that they leave, cross as one piece, and are scattered beside the slab
/// that they go to. The tag's num_tokens are page_tokens a page.
struct KvMoveArgs {
  enum class Step : std::uint8_t { gather, scatter };
  TaskTag tag;
  Step step = Step::gather;
  std::int64_t num_pages = 0;
  std::size_t page_bytes = 0;  ///< even
};

/// gather: moved[i] = slab[pages[i]]; scatter: slab[pages[i]] = moved[i].
struct KvMoveOperands {
  const KvMoveArgs* args = nullptr;
  const std::int32_t* pages = nullptr;  ///< [num_pages], all different
  std::byte* slab = nullptr;            ///< pages
  std::byte* moved = nullptr;           ///< [num_pages] pages
};
void kv_move_cpu(const CpuContext& cpu, const KvMoveOperands& operands);
/// All pointers are device memory.
void kv_move_cuda(const cuda::Context& gpu, const KvMoveOperands& operands);

struct KvMoveHandles {
  HandleRef pages;
  HandleRef slab;
  HandleRef moved;
};
/// Throws Error when `pages` or `moved` is not of num_pages pages.
void submit_kv_move(const KvMoveArgs& args, const KvMoveHandles& handles, DType dtype);

}  // namespace sluice
