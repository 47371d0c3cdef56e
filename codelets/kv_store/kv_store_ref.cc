#include <cstring>

#include "codelets/kv_store/kv_store.h"

namespace sluice {

void kv_store_reference(const KvStoreOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const std::size_t element = size_bytes(shape.dtype);
  for (std::int64_t r = 0; r < operands.batch.num_rows(); ++r) {
    const BatchRow& row = operands.batch.rows()[static_cast<std::size_t>(r)];
    const auto pages =
        operands.batch.pages(operands.batch.sequences()[static_cast<std::size_t>(row.sequence)]);
    const std::int64_t page = pages[static_cast<std::size_t>(row.position / page_tokens)];
    const std::int64_t token = row.position % page_tokens;
    for (std::int64_t i = 0; i < 2 * shape.kv_size(); ++i) {
      const std::int64_t half = i / shape.kv_size();
      const std::int64_t head = i % shape.kv_size() / shape.head_dim;
      const std::int64_t dim = i % shape.head_dim;
      const std::int64_t to =
          page * shape.page_elements() +
          (half == 0 ? shape.k_index(head, token, dim) : shape.v_index(head, token, dim));
      const std::int64_t from = r * 2 * shape.kv_size() + i;
      std::memcpy(operands.slab + static_cast<std::size_t>(to) * element,
                  operands.new_kv + static_cast<std::size_t>(from) * element, element);
    }
  }
}

}  // namespace sluice
