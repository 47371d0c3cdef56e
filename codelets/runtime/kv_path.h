#pragma once

#include <cstdint>

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/sublayer_range.h"

namespace sluice {

/// Which way KV takes to and from a task that runs sublayers 1 to 3 (LIA's equations 5, 7 and 9:
/// cached KV comes in, and new KV goes out). Only the device that reads the slab's tier without a
/// transfer stores into the slab. Between devices, the KV of new tokens passes in `new_kv`
/// [rows, 2 * kv_size], dtype: k of all heads, rotated, then v.
enum class KvPath : std::uint8_t {
  slab,             ///< sublayer 1 stores into the slab, attention reads the slab
  slab_and_new_kv,  ///< the same, and sublayer 1 leaves new_kv for attention on another device
  new_kv,           ///< sublayer 1 writes new_kv, attention reads it: no sequence has cached tokens
  cached_and_new_kv,  ///< the same, and attention reads cached tokens from the slab
};

/// Sublayer 1 stores into the slab, and attention finds all tokens there.
constexpr bool at_home(KvPath path) {
  return path == KvPath::slab || path == KvPath::slab_and_new_kv;
}

/// KV in a running task's memory; null where the task has no access.
struct KvBuffers {
  std::byte* slab = nullptr;    ///< pages, dtype; see DecoderShape::page_elements()
  std::byte* new_kv = nullptr;  ///< see KvPath
};

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
