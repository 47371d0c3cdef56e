
#include "codelets/attention/attention_plan_cuda.h"
#include "codelets/cuda/block.h"

namespace sluice {
namespace {

constexpr int block_threads = 256;

/// What one sequence, or all before it, add to the lists.
struct Amounts {
  std::int32_t parts = 0;
  std::int32_t slots = 0;
  std::int32_t split_rows = 0;
  std::int32_t tiles = 0;
};

/// The chunks of one row.
struct Chunks {
  std::int64_t first_token, end_token;
  std::int64_t chunk_tokens, first, count;

  __device__ Chunks(const DecoderShape& shape, std::int64_t position)
      : first_token(simd::first_visible_token(position, shape.sliding_window_tokens)),
        end_token(position + 1),
        chunk_tokens(chunk_tokens_of(shape, position)),
        first(first_token / chunk_tokens),
        count(position / chunk_tokens - first + 1) {}
};

class SequenceWork {
 public:
  __device__ SequenceWork(const DecoderShape& shape, LongRuns long_runs,
                          const BatchSequence& sequence)
      : shape_(shape),
        sequence_(sequence),
        splits_(sequence.num_rows < rows_worth_a_tile),
        tiles_(!splits_ && long_runs == LongRuns::as_tiles) {}

  __device__ Amounts amounts() const {
    Amounts sum;
    if (tiles_) {
      sum.tiles = static_cast<std::int32_t>((num_queries() + tile_queries - 1) / tile_queries);
    } else if (!splits_) {
      sum.parts = sequence_.num_rows;
    } else {
      for (std::int32_t i = 0; i < sequence_.num_rows; ++i) {
        const Chunks chunks(shape_, sequence_.context + i);
        sum.parts += static_cast<std::int32_t>(chunks.count);
        if (chunks.count == 1) continue;
        sum.slots += static_cast<std::int32_t>(chunks.count);
        ++sum.split_rows;
      }
    }
    return sum;
  }

  __device__ void put(const std::int32_t* pages, Amounts at, const AttentionWork& work) const {
    if (tiles_) {
      // The last rows see the most: longest first.
      for (std::int64_t first = (num_queries() - 1) / tile_queries * tile_queries; first >= 0;
           first -= tile_queries) {
        const std::int64_t end = first + tile_queries;
        work.tiles[at.tiles++] = {
            pages, sequence_.first_row, sequence_.context, static_cast<std::int32_t>(first),
            static_cast<std::int32_t>(end < num_queries() ? end : num_queries())};
      }
      return;
    }
    for (std::int32_t i = 0; i < sequence_.num_rows; ++i) {
      const Chunks chunks(shape_, sequence_.context + i);
      const std::int32_t row = sequence_.first_row + i;
      if (!splits_ || chunks.count == 1) {
        work.parts[at.parts++] = {pages, row, static_cast<std::int32_t>(chunks.first_token),
                                  static_cast<std::int32_t>(chunks.end_token), -1};
        continue;
      }
      work.split_rows[at.split_rows++] = {row, at.slots, static_cast<std::int32_t>(chunks.count)};
      for (std::int64_t chunk = chunks.first; chunk < chunks.first + chunks.count; ++chunk) {
        const std::int64_t begin = chunk * chunks.chunk_tokens;
        const std::int64_t end = begin + chunks.chunk_tokens;
        work.parts[at.parts++] = {
            pages, row,
            static_cast<std::int32_t>(begin > chunks.first_token ? begin : chunks.first_token),
            static_cast<std::int32_t>(end < chunks.end_token ? end : chunks.end_token), at.slots++};
      }
    }
  }

 private:
  __device__ std::int64_t num_queries() const { return sequence_.num_rows * shape_.group_size(); }

  const DecoderShape& shape_;
  const BatchSequence& sequence_;
  bool splits_, tiles_;
};

/// One block.
__global__ void plan_attention(DecoderShape shape, LongRuns long_runs, BatchView batch, DeviceKv kv,
                               AttentionWork work) {
  cuda::let_next_start();
  Amounts before;
  const auto count = static_cast<int>(batch.num_sequences());
  for (int first = 0; first < count; first += block_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    BatchSequence sequence;
    if (i < count) sequence = batch.sequences()[static_cast<std::size_t>(i)];
    const SequenceWork mine(shape, long_runs, sequence);
    const Amounts amounts = i < count ? mine.amounts() : Amounts();
    Amounts at;
    Amounts all;
    at.parts = before.parts + cuda::block_exclusive_sum(amounts.parts, &all.parts);
    at.slots = before.slots + cuda::block_exclusive_sum(amounts.slots, &all.slots);
    at.split_rows =
        before.split_rows + cuda::block_exclusive_sum(amounts.split_rows, &all.split_rows);
    at.tiles = before.tiles + cuda::block_exclusive_sum(amounts.tiles, &all.tiles);
    // The batch was there before the task; the lists' memory may still be in use.
    cuda::wait_for_last();
    if (i < count) mine.put(kv.pages_of(i), at, work);
    before = {before.parts + all.parts, before.slots + all.slots,
              before.split_rows + all.split_rows, before.tiles + all.tiles};
  }
  cuda::wait_for_last();
  if (threadIdx.x == 0) *work.counts = {before.parts, before.split_rows, before.tiles};
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionArgs& args, LongRuns long_runs,
                             cuda::WorkspaceLayout& layout)
    : shape_(args.shape),
      long_runs_(long_runs),
      most_(most_attention_amounts(args.shape, args.tag.num_tokens, args.tag.num_sequences,
                                   args.tag.context_tokens, long_runs)) {
  parts_at_ = layout.place<AttentionPart>(most_.parts);
  split_rows_at_ = layout.place<AttentionSplitRow>(most_.split_rows);
  tiles_at_ = layout.place<AttentionTile>(most_.tiles);
  counts_at_ = layout.place<AttentionWork::Counts>(1);
}

AttentionWork AttentionPlan::start(const cuda::Context& gpu, const BatchView& batch,
                                   const DeviceKv& kv, std::byte* memory) const {
  const AttentionWork work{
      .parts = reinterpret_cast<AttentionPart*>(memory + parts_at_),
      .split_rows = reinterpret_cast<AttentionSplitRow*>(memory + split_rows_at_),
      .tiles = reinterpret_cast<AttentionTile*>(memory + tiles_at_),
      .counts = reinterpret_cast<AttentionWork::Counts*>(memory + counts_at_)};
  cuda::launch("plan_attention", plan_attention,
               {.threads = dim3(block_threads), .early = cuda::starts_early(gpu)}, gpu.stream,
               shape_, long_runs_, batch, kv, work);
  return work;
}

}  // namespace sluice
