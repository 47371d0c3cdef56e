#include "codelets/kv_store/kv_store.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const KvStoreArgs& args, Buffers buffers) const {
    KvStoreOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.new_kv = buffers.take<std::byte>();
    operands.slab = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().kv_store(context, operands);
    } else {
      kv_store_cpu(context, operands);
    }
  }
};

void run_on_disk(const CpuContext& cpu, const KvStoreArgs& args, Buffers buffers) {
  DiskKvStoreOperands operands{.args = &args};
  operands.batch = BatchView(buffers.take<void>());
  operands.new_kv = buffers.take<std::byte>();
  operands.slab = buffers.take<DiskExtent>();
  kv_store_disk(cpu, operands);
}

struct Clear {
  template <typename Context>
  void operator()(const Context& context, const KvClearArgs& args, Buffers buffers) const {
    auto* slab = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().kv_clear(context, args, slab);
    } else {
      kv_clear_cpu(context, args, slab);
    }
  }
};

}  // namespace

std::size_t new_kv_bytes(const DecoderShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(rows * 2 * shape.kv_size()) * size_bytes(shape.dtype);
}

namespace {

void submit(const Codelet<KvStoreArgs>& codelet, const KvStoreArgs& args,
            const KvStoreHandles& handles) {
  const std::size_t found_bytes = handles.new_kv.size_bytes();
  const std::size_t expected_bytes = new_kv_bytes(args.shape, args.tag.num_tokens);
  if (found_bytes != expected_bytes) {
    throw Error("new KV of {} tokens takes {} bytes, not {}", args.tag.num_tokens, expected_bytes,
                found_bytes);
  }
  codelet.submit(args.shape.dtype, args,
                 {reads(handles.batch), reads(handles.new_kv), updates(handles.slab)});
}

}  // namespace

void submit_kv_store(const KvStoreArgs& args, const KvStoreHandles& handles) {
  static const auto codelet = Codelet<KvStoreArgs>::with_all<Run>("kv_store");
  submit(codelet, args, handles);
}

void submit_kv_store_on_disk(const KvStoreArgs& args, const KvStoreHandles& handles) {
  static const auto codelet =
      Codelet<KvStoreArgs>::with_cpu_at_home<run_on_disk>("kv_store_disk", 2);
  submit(codelet, args, handles);
}

void submit_kv_clear(const KvClearArgs& args, const DataHandle& slab, DType dtype) {
  static const auto codelet = Codelet<KvClearArgs>::with_all<Clear>("kv_clear");
  codelet.submit(dtype, args, {writes(slab)});
}

}  // namespace sluice
