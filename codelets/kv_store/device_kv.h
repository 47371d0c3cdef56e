#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/cuda/device.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/task.h"

namespace sluice {

/// KV as attention's CUDA kernels read it: AttentionKv's sibling. At home that is the slab. Away
/// from it, only the pages that hold new tokens are put together in the workspace, cached tokens
/// from the slab and new ones from new_kv; all others are read where they lie.
struct DeviceKv {
  BatchView batch{nullptr};
  const std::byte* slab = nullptr;
  const std::byte* gathered = nullptr;        ///< away: pages with new tokens
  const std::int32_t* pages = nullptr;        ///< away: as the batch's; below 0: gathered -(p + 1)
  const std::int32_t* first_pages = nullptr;  ///< away: [sequences], where each one's pages begin
  std::size_t page_bytes = 0;

  /// The pages of one sequence, in order of position, for at().
  __device__ const std::int32_t* pages_of(std::int64_t sequence) const {
    if (pages != nullptr) return pages + first_pages[sequence];
    return batch.pages().data() + batch.sequences()[static_cast<std::size_t>(sequence)].first_page;
  }
  __device__ const std::byte* at(std::int32_t page) const {
    return page >= 0 ? slab + static_cast<std::size_t>(page) * page_bytes
                     : gathered + static_cast<std::size_t>(-(page + 1)) * page_bytes;
  }
};

/// The workspace that a DeviceKv takes, and how it is made.
class DeviceKvPlan {
 public:
  /// By the tag's num_tokens, num_sequences and context_tokens.
  DeviceKvPlan(const TaskTag& tag, const DecoderShape& shape, KvPath path,
               cuda::WorkspaceLayout& layout);

  /// Starts what gathers, where something must be. `slab` and `new_kv` as in KvBuffers; `memory` is
  /// the workspace that was laid out.
  DeviceKv start(const cuda::Context& gpu, const BatchView& batch, const std::byte* slab,
                 const std::byte* new_kv, std::byte* memory) const;

 private:
  DecoderShape shape_;
  bool away_;
  std::int64_t max_gathered_pages_ = 0;
  std::size_t first_pages_at_ = 0, first_gathered_at_ = 0, pages_at_ = 0, gathered_at_ = 0;
};

}  // namespace sluice
