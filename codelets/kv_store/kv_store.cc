#include "codelets/kv_store/kv_store.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct KvStoreTask {
  using Args = KvStoreArgs;
  using Handles = KvStoreHandles;
  using Operands = KvStoreOperands;

  template <typename Data>
  static void list(const Args& /*args*/, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::new_kv, &Operands::new_kv);
    data.updates(&Handles::slab, &Operands::slab);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { kv_store_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().kv_store(gpu, operands);
  }
};

/// The same of a slab that is a place on a disk.
struct DiskKvStoreTask : KvStoreTask {
  using Operands = DiskKvStoreOperands;

  template <typename Data>
  static void list(const Args& /*args*/, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::new_kv, &Operands::new_kv);
    data.updates(&Handles::slab, &Operands::slab);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { kv_store_disk(cpu, operands); }
};

void run_on_disk(const CpuContext& cpu, const KvStoreArgs& args, Buffers buffers) {
  RunTask<DiskKvStoreTask>()(cpu, args, buffers);
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

template <typename Task>
void submit(const Codelet<KvStoreArgs>& codelet, const KvStoreArgs& args,
            const KvStoreHandles& handles) {
  const std::size_t found_bytes = handles.new_kv->size_bytes();
  const std::size_t expected_bytes = new_kv_bytes(args.shape, args.tag.num_tokens);
  if (found_bytes != expected_bytes) {
    throw Error("new KV of {} tokens takes {} bytes, not {}", args.tag.num_tokens, expected_bytes,
                found_bytes);
  }
  submit_to<Task>(codelet, args.shape.dtype, args, handles);
}

}  // namespace

void submit_kv_store(const KvStoreArgs& args, const KvStoreHandles& handles) {
  static const auto codelet = Codelet<KvStoreArgs>::with_all<RunTask<KvStoreTask>>("kv_store");
  submit<KvStoreTask>(codelet, args, handles);
}

void submit_kv_store_on_disk(const KvStoreArgs& args, const KvStoreHandles& handles) {
  static const auto codelet =
      Codelet<KvStoreArgs>::with_cpu_at_home<run_on_disk>("kv_store_disk", 2);
  submit<DiskKvStoreTask>(codelet, args, handles);
}

void submit_kv_clear(const KvClearArgs& args, const DataHandle& slab, DType dtype) {
  static const auto codelet = Codelet<KvClearArgs>::with_all<Clear>("kv_clear");
  codelet.submit(dtype, args, {writes(slab)});
}

}  // namespace sluice
