#pragma once

#include <cstddef>

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/sublayer_range.h"

namespace sluice {

/// What a task does with a layer's KV.
class KvAccess {
 public:
  KvAccess(KvPath path, const SublayerRange& range) {
    const bool stores = range.has(Sublayer::qkv);
    const bool attends = range.has(Sublayer::qk) || range.has(Sublayer::sv);
    if (at_home(path)) {
      if (attends) slab_ = STARPU_R;
      if (stores) slab_ = STARPU_RW;
      if (stores && path == KvPath::slab_and_new_kv) new_kv_ = STARPU_W;
    } else {
      if (attends) new_kv_ = STARPU_R;
      if (stores) new_kv_ = STARPU_W;
      if (attends && path == KvPath::cached_and_new_kv) slab_ = STARPU_R;
    }
  }
  void add_to(AccessList& accesses, const DataHandle& slab, const DataHandle& new_kv) const {
    accesses.add_if(slab_ != STARPU_NONE, {slab.get(), slab_});
    accesses.add_if(new_kv_ != STARPU_NONE, {new_kv.get(), new_kv_});
  }
  /// In the order of add_to().
  KvBuffers take_from(Buffers& buffers) const {
    KvBuffers taken;
    taken.slab = buffers.take_if<std::byte>(slab_ != STARPU_NONE);
    taken.new_kv = buffers.take_if<std::byte>(new_kv_ != STARPU_NONE);
    return taken;
  }

 private:
  starpu_data_access_mode slab_ = STARPU_NONE;
  starpu_data_access_mode new_kv_ = STARPU_NONE;
};

}  // namespace sluice
