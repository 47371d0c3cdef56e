#include "codelets/cuda/block.h"
#include "codelets/kernels/attention_simd.h"
#include "codelets/qk/score_offsets_cuda.h"

namespace sluice {
namespace {

constexpr int block_threads = 1024;

/// One block.
__global__ void __launch_bounds__(block_threads)
    add_up_scores(DecoderShape shape, BatchView batch, std::int64_t* offsets) {
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < batch.num_rows(); first += block_threads) {
    const std::int64_t row = first + threadIdx.x;
    std::int64_t mine = 0;
    if (row < batch.num_rows()) {
      const std::int64_t position = batch.rows()[static_cast<std::size_t>(row)].position;
      mine = shape.num_heads *
             (position + 1 - simd::first_visible_token(position, shape.sliding_window_tokens));
    }
    std::int64_t all = 0;
    const std::int64_t offset = before + cuda::block_exclusive_sum(mine, &all);
    if (row < batch.num_rows()) offsets[row] = offset;
    before += all;
  }
}

}  // namespace

void find_score_offsets(const cuda::Context& gpu, const DecoderShape& shape, const BatchView& batch,
                        std::int64_t* offsets) {
  cuda::launch("add_up_scores", add_up_scores, {.threads = dim3(block_threads)}, gpu.stream, shape,
               batch, offsets);
}

}  // namespace sluice
