#pragma once

#include <optional>

#include "codelets/kv_store/page_copies.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/shape.h"

namespace sluice {

/// KV as attention's CPU kernels read it. At home that is the slab. Away from it, the pages that
/// the batch reads are put together in memory of its own, cached tokens from the slab and new ones
/// from new_kv, and numbered anew: the same kernels run on the same bits, at the price of a copy.
/// That memory is its thread's, which has one of these at a time.
class AttentionKv {
 public:
  /// Slab and new KV as KvBuffers has them. `batch` and they outlive it; without cached tokens,
  /// there need be no slab.
  AttentionKv(const CpuContext& cpu, const DecoderShape& shape, KvPath path, const BatchView& batch,
              const std::byte* slab, const std::byte* new_kv);
  ~AttentionKv() = default;
  AttentionKv(const AttentionKv&) = delete;
  AttentionKv& operator=(const AttentionKv&) = delete;

  /// The batch with the pages that slab() has.
  const BatchView& batch() const { return batch_; }
  const std::byte* slab() const { return slab_; }

 private:
  void gather(const CpuContext& cpu, const DecoderShape& shape, const BatchView& given,
              const std::byte* slab, const std::byte* new_kv);

  BatchView batch_;
  const std::byte* slab_;
  std::optional<PageCopies> gathered_;
};

}  // namespace sluice
