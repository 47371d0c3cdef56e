#include "codelets/cuda/block.h"
#include "codelets/kv_store/device_kv.h"

namespace sluice {
namespace {

constexpr int block_threads = 256;

__device__ std::int64_t pages_in_use(const BatchSequence& sequence) {
  return (std::int64_t{sequence.context} + sequence.num_rows + page_tokens - 1) / page_tokens;
}

/// Pages that hold new tokens.
__device__ std::int64_t new_pages(const BatchSequence& sequence) {
  return pages_in_use(sequence) - sequence.context / page_tokens;
}

/// Where in the new page table each sequence's pages begin, and which of the gathered pages is its
/// first; and the table. One block.
__global__ void number_pages(BatchView batch, std::int32_t* first_pages,
                             std::int32_t* first_gathered, std::int32_t* pages) {
  const std::span<const BatchSequence> sequences = batch.sequences();
  const auto count = static_cast<int>(batch.num_sequences());
  std::int32_t pages_before = 0;
  std::int32_t gathered_before = 0;
  for (int first = 0; first < count; first += block_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool any = i < count;
    const auto mine = static_cast<std::int32_t>(any ? pages_in_use(sequences[i]) : 0);
    const auto mine_new = static_cast<std::int32_t>(any ? new_pages(sequences[i]) : 0);
    std::int32_t all = 0;
    std::int32_t all_new = 0;
    const std::int32_t before = cuda::block_exclusive_sum(mine, &all);
    const std::int32_t before_new = cuda::block_exclusive_sum(mine_new, &all_new);
    if (any) {
      first_pages[i] = pages_before + before;
      first_gathered[i] = gathered_before + before_new;
    }
    pages_before += all;
    gathered_before += all_new;
  }
  if (threadIdx.x == 0) first_gathered[count] = gathered_before;
  __syncthreads();
  constexpr int num_warps = block_threads / cuda::warp_threads;
  for (int i = static_cast<int>(threadIdx.x) / cuda::warp_threads; i < count; i += num_warps) {
    const BatchSequence& sequence = sequences[i];
    const std::int32_t* given = batch.pages().data() + sequence.first_page;
    const int first_new = sequence.context / static_cast<int>(page_tokens);
    for (int page = static_cast<int>(threadIdx.x) % cuda::warp_threads;
         page < pages_in_use(sequence); page += cuda::warp_threads) {
      pages[first_pages[i] + page] =
          page < first_new ? given[page] : -(first_gathered[i] + page - first_new + 1);
    }
  }
}

/// Index of the sequence that gathered page `page` belongs to.
__device__ int owner_of(const std::int32_t* first_gathered, int num_sequences, int page) {
  int low = 0;
  int high = num_sequences;  // first_gathered[low] <= page < first_gathered[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_gathered[middle] <= page ? low : high) = middle;
  }
  return low;
}

/// A block a page with new tokens.
template <typename Element>
__global__ void gather_pages(DecoderShape shape, BatchView batch, const Element* slab,
                             const Element* new_kv, const std::int32_t* first_gathered,
                             Element* gathered) {
  const auto index = static_cast<int>(blockIdx.x);
  const auto count = static_cast<int>(batch.num_sequences());
  if (index >= first_gathered[count]) return;
  const int owner = owner_of(first_gathered, count, index);
  const BatchSequence sequence = batch.sequences()[static_cast<std::size_t>(owner)];
  const std::int64_t page = sequence.context / page_tokens + index - first_gathered[owner];
  const std::int64_t first_token = page * page_tokens;
  const Element* cached =
      first_token < sequence.context
          ? slab + batch.pages(sequence)[static_cast<std::size_t>(page)] * shape.page_elements()
          : nullptr;
  Element* to = gathered + index * shape.page_elements();
  const std::int64_t end = std::int64_t{sequence.context} + sequence.num_rows;
  const std::int64_t kv_size = shape.kv_size();
  for (std::int64_t token = first_token; token < first_token + page_tokens && token < end;
       ++token) {
    const std::int64_t row = sequence.first_row + token - sequence.context;
    for (std::int64_t i = threadIdx.x; i < 2 * kv_size; i += blockDim.x) {
      const std::int64_t head = i % kv_size / shape.head_dim;
      const std::int64_t dim = i % shape.head_dim;
      const std::int64_t at = i < kv_size ? shape.k_index(head, token % page_tokens, dim)
                                          : shape.v_index(head, token % page_tokens, dim);
      to[at] = token < sequence.context ? cached[at] : new_kv[row * 2 * kv_size + i];
    }
  }
}

}  // namespace

DeviceKvPlan::DeviceKvPlan(const TaskTag& tag, const DecoderShape& shape, KvPath path,
                           cuda::WorkspaceLayout& layout)
    : shape_(shape), away_(!at_home(path)) {
  if (!away_) return;
  max_gathered_pages_ = tag.num_tokens / page_tokens + 2 * tag.num_sequences;
  first_pages_at_ = layout.place<std::int32_t>(tag.num_sequences);
  first_gathered_at_ = layout.place<std::int32_t>(tag.num_sequences + 1);
  pages_at_ = layout.place<std::int32_t>(tag.context_tokens / page_tokens + tag.num_sequences);
  gathered_at_ =
      layout.place<std::byte>(max_gathered_pages_ * static_cast<std::int64_t>(shape.page_bytes()));
}

DeviceKv DeviceKvPlan::start(const cuda::Context& gpu, const BatchView& batch,
                             const std::byte* slab, const std::byte* new_kv,
                             std::byte* memory) const {
  DeviceKv kv{.batch = batch, .slab = slab, .page_bytes = shape_.page_bytes()};
  if (!away_) return kv;
  auto* first_pages = reinterpret_cast<std::int32_t*>(memory + first_pages_at_);
  auto* first_gathered = reinterpret_cast<std::int32_t*>(memory + first_gathered_at_);
  auto* pages = reinterpret_cast<std::int32_t*>(memory + pages_at_);
  kv.gathered = memory + gathered_at_;
  kv.first_pages = first_pages;
  kv.pages = pages;
  cuda::launch("number_pages", number_pages, {.threads = dim3(block_threads)}, gpu.stream, batch,
               first_pages, first_gathered, pages);
  const cuda::LaunchShape all{.blocks = dim3(static_cast<unsigned>(max_gathered_pages_)),
                              .threads = dim3(block_threads)};
  const auto gather = [&]<typename Element>(Element* to) {
    cuda::launch("gather_pages", gather_pages<Element>, all, gpu.stream, shape_, batch,
                 reinterpret_cast<const Element*>(slab), reinterpret_cast<const Element*>(new_kv),
                 first_gathered, to);
  };
  if (shape_.dtype == DType::f32) {
    gather(reinterpret_cast<float*>(memory + gathered_at_));
  } else {
    gather(reinterpret_cast<std::uint16_t*>(memory + gathered_at_));
  }
  return kv;
}

}  // namespace sluice
