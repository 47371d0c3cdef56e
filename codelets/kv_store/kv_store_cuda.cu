#include "codelets/cuda/device.h"
#include "codelets/kv_store/kv_store.h"

namespace sluice {
namespace {

/// A block a row.
template <typename Element>
__global__ void store_rows(DecoderShape shape, BatchView batch, const Element* new_kv,
                           Element* slab) {
  const BatchRow row = batch.rows()[blockIdx.x];
  const BatchSequence& sequence = batch.sequences()[static_cast<std::size_t>(row.sequence)];
  const std::int64_t page =
      batch.pages(sequence)[static_cast<std::size_t>(row.position / page_tokens)];
  const std::int64_t kv_size = shape.kv_size();
  Element* to = slab + page * shape.page_elements();
  const Element* from = new_kv + blockIdx.x * 2 * kv_size;
  for (std::int64_t i = threadIdx.x; i < 2 * kv_size; i += blockDim.x) {
    const std::int64_t head = i % kv_size / shape.head_dim;
    const std::int64_t dim = i % shape.head_dim;
    const std::int64_t at = i < kv_size ? shape.k_index(head, row.position % page_tokens, dim)
                                        : shape.v_index(head, row.position % page_tokens, dim);
    to[at] = from[i];
  }
}

template <typename Element>
void launch_store(const cuda::Context& gpu, const KvStoreOperands& operands) {
  const cuda::LaunchShape shape{
      .blocks = dim3(static_cast<unsigned>(operands.args->tag.num_tokens)), .threads = dim3(256)};
  cuda::launch("store_rows", store_rows<Element>, shape, gpu.stream, operands.args->shape,
               operands.batch, reinterpret_cast<const Element*>(operands.new_kv),
               reinterpret_cast<Element*>(operands.slab));
}

}  // namespace

void kv_store_cuda(const cuda::Context& gpu, const KvStoreOperands& operands) {
  if (operands.args->shape.dtype == DType::f32) return launch_store<float>(gpu, operands);
  launch_store<std::uint16_t>(gpu, operands);
}

void kv_clear_cuda(const cuda::Context& gpu, const KvClearArgs& args, std::byte* slab) {
  cuda::check(cudaMemsetAsync(slab, 0, args.slab_bytes, gpu.stream), "clearing KV");
}

}  // namespace sluice
