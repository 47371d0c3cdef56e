#pragma once

#include <ostream>
#include <vector>

#include "codelets/kv_store/kv_store.h"
#include "tests/codelets/codelet_data.h"

// What storing KV is tested with, on every device.
namespace sluice::test {

struct KvStoreShape {
  const char* name;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
};

inline std::ostream& operator<<(std::ostream& out, const KvStoreShape& shape) {
  return out << shape.name;
}

inline const std::vector<KvStoreShape> kv_store_shapes = {
    {"head_9", 7, 9}, {"head_28_group", 2, 28}, {"head_64_one", 1, 64}};

/// New KV of prompts, pieces that end within a page or at its end, and decode rows, in no order,
/// and a slab full of other values.
struct KvStoreData {
  KvStoreData(DType dtype, const KvStoreShape& from) {
    DecoderShape& shape = args.shape;
    shape.dtype = dtype;
    shape.num_heads = shape.num_kv_heads = from.num_kv_heads;
    shape.head_dim = from.head_dim;
    Random random(47);
    batch =
        make_batch(random, {{0, 20}, {37, 1}, {16, 1}, {15, 18}, {0, 1}, {31, 1}, {200, 30}}, 9);
    args.tag.num_tokens = batch.num_rows();
    new_kv = make_operand(random.floats(batch.num_rows() * 2 * shape.kv_size(), 2.0), dtype);
    slab = make_operand(random.floats(batch.num_pages * shape.page_elements(), 2.0), dtype);
  }

  KvStoreOperands operands(std::vector<std::byte>& to) const {
    return {.args = &args, .batch = batch.view(), .new_kv = new_kv.data(), .slab = to.data()};
  }
  /// What the slab holds afterwards.
  std::vector<std::byte> expected() const {
    std::vector<std::byte> after = slab.memory;
    kv_store_reference(operands(after));
    return after;
  }

  KvStoreArgs args;
  RaggedBatch batch;
  Operand new_kv, slab;
};

}  // namespace sluice::test
