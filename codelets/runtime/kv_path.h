#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace sluice
