#pragma once

#include <cstdint>

#include "codelets/attention/attention_call_cuda.h"
#include "codelets/attention/attention_mma_cuda.h"

/// What both kernels by tensor cores share.
namespace sluice::attention_cuda_kernels {

namespace mma = tensor_attention;

constexpr int mma_warps = 4;
constexpr int mma_threads = mma_warps * cuda::warp_threads;
static_assert(mma_warps * mma::query_rows == tile_queries);
static_assert(mma::block_dims == block_dims);

/// Of threads that a multiprocessor runs: as many as have room for what they keep in registers.
constexpr int blocks_at_once(int blocks) { return blocks > 4 ? 1 : blocks > 2 ? 2 : 3; }

/// The pages of some tokens, for those of a row or a block that see [first, end): where it sees
/// nothing, another one that it sees, as that page need not exist. Which tokens are seen is asked
/// later.
struct SeenPages {
  const std::int32_t* pages;
  int first, last;

  __device__ SeenPages(const std::int32_t* of_sequence, const mma::Visible& seen)
      : pages(of_sequence),
        first(seen.first / static_cast<int>(page_tokens)),
        last((seen.end - 1) / static_cast<int>(page_tokens)) {}
  __device__ std::int32_t of(int token) const {
    const int page = token / static_cast<int>(page_tokens);
    return pages[page < first ? first : page > last ? last : page];
  }
};

}  // namespace sluice::attention_cuda_kernels
