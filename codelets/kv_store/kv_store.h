#pragma once

#include <cstddef>

#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
class DataHandle;
class DiskExtent;
namespace cuda {
struct Context;
}

/// Argument of the codelet that stores KV (LIA's equation 9).
struct KvStoreArgs {
  TaskTag tag;
  DecoderShape shape;
};

/// Puts the keys and values of a batch's new tokens into the sequences' pages. Runs where the slab
/// is at home, when sublayer 1 ran elsewhere or attention does.
struct KvStoreOperands {
  const KvStoreArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* new_kv = nullptr;  ///< [rows, 2 * kv_size], dtype: k of all heads, then v
  std::byte* slab = nullptr;          ///< pages, dtype; see DecoderShape::page_elements()
};
void kv_store_cpu(const CpuContext& cpu, const KvStoreOperands& operands);
/// All pointers are device memory; the tag names the number of rows.
void kv_store_cuda(const cuda::Context& gpu, const KvStoreOperands& operands);
/// The same element by element, straight from the pages' layout.
void kv_store_reference(const KvStoreOperands& operands);

/// The same into a slab that lives on a disk: the pages that get new tokens are put together in
/// memory of the thread's own and written, those that hold older tokens read before. Throws Error
/// when the disk fails.
struct DiskKvStoreOperands {
  const KvStoreArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* new_kv = nullptr;  ///< as KvStoreOperands'
  const DiskExtent* slab = nullptr;
};
void kv_store_disk(const CpuContext& cpu, const DiskKvStoreOperands& operands);

struct KvStoreHandles {
  HandleRef batch;
  HandleRef new_kv;
  HandleRef slab;
};
/// Throws Error when new_kv does not have the tag's number of rows.
void submit_kv_store(const KvStoreArgs& args, const KvStoreHandles& handles);
/// The slab's home is a disk: it is written there, by the CPU.
void submit_kv_store_on_disk(const KvStoreArgs& args, const KvStoreHandles& handles);

/// Argument of the codelet that makes an empty slab.
struct KvClearArgs {
  TaskTag tag;
  std::size_t slab_bytes = 0;
};
/// Zeros, so that what lies beyond a context is finite.
void kv_clear_cpu(const CpuContext& cpu, const KvClearArgs& args, std::byte* slab);
/// `slab` is device memory.
void kv_clear_cuda(const cuda::Context& gpu, const KvClearArgs& args, std::byte* slab);
/// Where the tag's device is; what the slab held is gone.
void submit_kv_clear(const KvClearArgs& args, const DataHandle& slab, DType dtype);

/// Bytes of `rows` rows of new_kv.
std::size_t new_kv_bytes(const DecoderShape& shape, std::int64_t rows);

}  // namespace sluice
