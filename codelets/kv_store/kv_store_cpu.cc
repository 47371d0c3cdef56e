#include <algorithm>
#include <cstring>

#include "codelets/kernels/kv_page.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

template <typename Element>
void store_rows(const CpuContext& cpu, const KvStoreOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const auto* new_kv = reinterpret_cast<const Element*>(operands.new_kv);
  cpu.pool.run(operands.batch.num_rows(), [&](std::int64_t r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    std::byte* page = page_of(shape, operands.batch, row, operands.slab);
    store_kv(shape, row.position % page_tokens, new_kv + r * 2 * shape.kv_size(),
             reinterpret_cast<Element*>(page));
  });
}

}  // namespace

void kv_store_cpu(const CpuContext& cpu, const KvStoreOperands& operands) {
  if (operands.args->shape.dtype == DType::f32) return store_rows<float>(cpu, operands);
  store_rows<BFloat16>(cpu, operands);
}

void kv_clear_cpu(const CpuContext& cpu, const KvClearArgs& args, std::byte* slab) {
  constexpr std::size_t piece_bytes = std::size_t{1} << 20;
  const auto pieces = static_cast<std::int64_t>((args.slab_bytes + piece_bytes - 1) / piece_bytes);
  cpu.pool.run(pieces, [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i) * piece_bytes;
    std::memset(slab + at, 0, std::min(piece_bytes, args.slab_bytes - at));
  });
}

}  // namespace sluice
