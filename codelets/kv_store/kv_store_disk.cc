#include <cstring>

#include "codelets/kv_store/kv_store.h"
#include "codelets/kv_store/page_copies.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

namespace {

/// One sequence's pages that get new tokens, of which there are some, on the disk and as they are
/// put together in memory, where they lie side by side.
class NewPages {
 public:
  NewPages(const DiskKvStoreOperands& operands, const PageCopies& copies, std::size_t sequence)
      : slab_(*operands.slab),
        page_bytes_(operands.args->shape.page_bytes()),
        sequence_(operands.batch.sequences()[sequence]),
        first_(sequence_.context / page_tokens),
        indices_(operands.batch.pages(sequence_)),
        memory_(copies.memory() +
                static_cast<std::size_t>(copies.batch().pages(sequence_)[first()]) * page_bytes_) {}

  /// What lies beyond a context must be a number.
  void fetch() const {
    std::memset(memory_, 0, count() * page_bytes_);
    if (sequence_.context % page_tokens != 0) slab_.read(place(0), page_bytes_, memory_);
  }
  /// Neighbours at once.
  void write() const {
    std::size_t begin = 0;
    for (std::size_t end = 1; end <= count(); ++end) {
      if (end < count() && place(end) == place(end - 1) + page_bytes_) continue;
      slab_.write(place(begin), (end - begin) * page_bytes_, memory_ + begin * page_bytes_);
      begin = end;
    }
  }

 private:
  std::size_t first() const { return static_cast<std::size_t>(first_); }
  std::size_t count() const { return static_cast<std::size_t>(pages_in_use(sequence_) - first_); }
  std::uint64_t place(std::size_t page) const {
    return static_cast<std::uint64_t>(indices_[first() + page]) * page_bytes_;
  }

  const DiskExtent& slab_;
  std::size_t page_bytes_;
  const BatchSequence& sequence_;
  std::int64_t first_;
  std::span<const std::int32_t> indices_;
  std::byte* memory_;
};

}  // namespace

void kv_store_disk(const CpuContext& cpu, const DiskKvStoreOperands& operands) {
  const PageCopies copies(operands.batch, PageCopies::Pages::of_new_tokens,
                          operands.args->shape.page_bytes());
  const auto of_each_sequence = [&](const auto& work) {
    cpu.pool.run(operands.batch.num_sequences(), [&](std::int64_t i) {
      work(NewPages(operands, copies, static_cast<std::size_t>(i)));
    });
  };
  of_each_sequence([](const NewPages& mine) { mine.fetch(); });
  kv_store_cpu(cpu, {operands.args, copies.batch(), operands.new_kv, copies.memory()});
  of_each_sequence([](const NewPages& mine) { mine.write(); });
}

}  // namespace sluice
