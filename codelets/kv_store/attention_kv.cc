#include "codelets/kv_store/attention_kv.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "codelets/kernels/attention_simd.h"
#include "codelets/kv_store/kv_store.h"

namespace sluice {
namespace {

/// One sequence's pages.
template <typename Byte>
struct Pages {
  Byte* slab;
  std::span<const std::int32_t> indices;

  Byte* at(std::int64_t page, std::size_t page_bytes) const {
    return slab + static_cast<std::size_t>(indices[static_cast<std::size_t>(page)]) * page_bytes;
  }
};

/// Copies the pages that hold cached tokens of which some row sees any.
void copy_cached(const DecoderShape& shape, const BatchSequence& sequence,
                 const Pages<const std::byte>& from, const Pages<std::byte>& to) {
  const std::int64_t first =
      simd::first_visible_token(sequence.context, shape.sliding_window_tokens) / page_tokens;
  for (std::int64_t page = first; page < pages_of(sequence.context); ++page) {
    std::memcpy(to.at(page, shape.page_bytes()), from.at(page, shape.page_bytes()),
                shape.page_bytes());
  }
}

/// Clears the pages of new tokens alone: what pads a head is multiplied, and must be a number.
void clear_new(const DecoderShape& shape, const BatchSequence& sequence,
               const Pages<std::byte>& pages) {
  if (shape.head_dim == shape.padded_head_dim()) return;
  for (std::int64_t page = pages_of(sequence.context); page < pages_in_use(sequence); ++page)
    std::memset(pages.at(page, shape.page_bytes()), 0, shape.page_bytes());
}

}  // namespace

AttentionKv::AttentionKv(const CpuContext& cpu, const DecoderShape& shape, KvPath path,
                         const BatchView& batch, const std::byte* slab, const std::byte* new_kv)
    : batch_(batch), slab_(slab) {
  if (!at_home(path)) gather(cpu, shape, batch, slab, new_kv);
}

void AttentionKv::gather(const CpuContext& cpu, const DecoderShape& shape, const BatchView& given,
                         const std::byte* slab, const std::byte* new_kv) {
  const PageCopies& copies =
      gathered_.emplace(given, PageCopies::Pages::in_use, shape.page_bytes());
  batch_ = copies.batch();
  slab_ = copies.memory();
  cpu.pool.run(given.num_sequences(), [&](std::int64_t i) {
    const BatchSequence& sequence = given.sequences()[static_cast<std::size_t>(i)];
    const Pages<std::byte> mine{copies.memory(), batch_.pages(sequence)};
    clear_new(shape, sequence, mine);
    if (slab != nullptr) copy_cached(shape, sequence, {slab, given.pages(sequence)}, mine);
  });
  const KvStoreArgs args{.tag = {}, .shape = shape};
  kv_store_cpu(cpu, {&args, batch_, new_kv, copies.memory()});
}

}  // namespace sluice
