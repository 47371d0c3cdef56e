#include "codelets/attention/attention_rows_cuda.h"
#include "codelets/attention/attention_warps_cuda.h"

namespace sluice::attention_cuda_kernels {
namespace {

/// Blocks of 16 heads that a KV head's group makes.
constexpr std::int64_t query_blocks_of(const DecoderShape& shape) {
  return (shape.group_size() + mma::query_rows - 1) / mma::query_rows;
}
/// Rows of shared memory that each warp needs to leave its sums.
constexpr std::int64_t merged_rows_of(const DecoderShape& shape) {
  return shape.group_size() < mma::query_rows ? shape.group_size() : mma::query_rows;
}

/// The same as attend_parts_in_f32 with tensor cores: the heads of a group are the rows of a
/// product. A warp takes every fourth step of 32 tokens, straight from the pages. `Full`: a head
/// has all of the blocks' dimensions.
template <int Blocks, bool Full>
__global__ void __launch_bounds__(mma_threads, blocks_at_once(Blocks)) attend_parts_mma(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  constexpr int dims = Blocks * mma::block_dims;
  const auto merged_rows = static_cast<int>(merged_rows_of(call.shape));
  auto* merged = cuda::dynamic_shared<float>();                // [mma_warps][merged_rows][dims]
  float* maxima = merged + mma_warps * merged_rows * dims;     // [mma_warps][query_rows]
  float* denominators = maxima + mma_warps * mma::query_rows;  // [mma_warps][query_rows]
  const int warp_index = static_cast<int>(threadIdx.x) / cuda::warp_threads;
  const int head_dim = Full ? dims : static_cast<int>(call.shape.head_dim);
  const int padded = Full ? dims : static_cast<int>(call.shape.padded_head_dim());
  const auto group = static_cast<int>(call.shape.group_size());
  const auto query_blocks = static_cast<int>(query_blocks_of(call.shape));
  const auto head_blocks = static_cast<int>(call.shape.num_kv_heads) * query_blocks;
  const float scale = rows::log2_scale(call.shape);
  const std::int64_t count = std::int64_t{call.work.counts->parts} * head_blocks;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const AttentionPart part = call.work.parts[i / head_blocks];
    const int head_block = static_cast<int>(i % head_blocks);
    const int kv_head = head_block / query_blocks;
    const int first_in_group = head_block % query_blocks * mma::query_rows;
    const int first_head = kv_head * group + first_in_group;
    const int num_heads =
        group - first_in_group < mma::query_rows ? group - first_in_group : mma::query_rows;
    const mma::Visible seen{part.first_token, part.end_token};

    mma::Warp<Blocks, 1> warp;
    warp.load_queries(head_dim, [&](int row) -> const BFloat16* {
      if (row >= num_heads) return nullptr;
      return reinterpret_cast<const BFloat16*>(call.q) + part.row * call.shape.q_size() +
             std::int64_t{first_head + row} * head_dim;
    });
    const mma::Lane& lane = warp.lane;
    const SeenPages pages(part.pages, seen);
    for (int first = (seen.first / mma::step_tokens + warp_index) * mma::step_tokens;
         first < seen.end; first += mma_warps * mma::step_tokens) {
      const auto page_at = [&](int page) {
        return reinterpret_cast<const std::uint32_t*>(
            call.kv.at(pages.of(first + page * static_cast<int>(page_tokens))));
      };
      const std::uint32_t* keys = page_at(lane.key_page()) + call.shape.k_offset(kv_head) / 2;
      const std::uint32_t* values = page_at(lane.value_page()) + call.shape.v_offset(kv_head) / 2;
      const auto load_key = [&](int k, int half) {
        const int pair = 8 * k + lane.place + 4 * half;
        if (!Full && 2 * pair >= head_dim) return make_uint4(0, 0, 0, 0);
        return __ldg(reinterpret_cast<const uint4*>(keys + lane.key_word(pair)));
      };
      const bool hides = first < seen.first || first + mma::step_tokens > seen.end;
      const auto load_value = [&](int block, int u) {
        const int column = lane.value_column(block);
        if (!Full && column >= padded) return make_uint4(0, 0, 0, 0);
        const uint4 words =
            __ldg(reinterpret_cast<const uint4*>(values + lane.value_row(u) * padded + column));
        return hides ? mma::hide_unseen(words, first + 8 * lane.place + 2 * u, seen) : words;
      };
      mma::Scores scores[1];
      mma::Weights weights[1];
      if constexpr (Blocks <= 4) {
        // All of a step's keys are on their way at once, and then all values.
        uint4 key[2 * Blocks][2];
#pragma unroll
        for (int k = 0; k < 2 * Blocks; ++k) {
          key[k][0] = load_key(k, 0);
          key[k][1] = load_key(k, 1);
        }
        warp.score(padded / 16, scores[0], [&](int k, int half) { return key[k][half]; });
        uint4 value[Blocks][4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int block = 0; block < Blocks; ++block) value[block][u] = load_value(block, u);
        }
        warp.template weigh<true>(scores, first, scale, {seen, seen}, weights);
        warp.add_values(weights[0], [&](int block, int u) { return value[block][u]; });
      } else {
        warp.score(padded / 16, scores[0], load_key);
        warp.template weigh<true>(scores, first, scale, {seen, seen}, weights);
        warp.add_values(weights[0], load_value);
      }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane.group + 8 * r;
      const float denominator = warp.whole_denominator(r);
      if (lane.place == 0) {
        maxima[warp_index * mma::query_rows + row] = warp.maximum[r];
        denominators[warp_index * mma::query_rows + row] = denominator;
      }
      if (row >= num_heads) continue;
      float* to = merged + (warp_index * merged_rows + row) * dims + 8 * lane.place;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
#pragma unroll
        for (int dim = 0; dim < 8; ++dim) {
          to[block * mma::block_dims + dim] = warp.sum_at(r, block, dim);
        }
      }
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < num_heads * head_dim; at += mma_threads) {
      const int row = at / head_dim;
      const int dim = at % head_dim;
      float maximum = -INFINITY;
      for (int w = 0; w < mma_warps; ++w) {
        maximum = fmaxf(maximum, maxima[w * mma::query_rows + row]);
      }
      float sum = 0;
      float denominator = 0;
      for (int w = 0; w < mma_warps; ++w) {
        const float factor = exp2f(maxima[w * mma::query_rows + row] - maximum);
        sum += factor * merged[(w * merged_rows + row) * dims + dim];
        denominator += factor * denominators[w * mma::query_rows + row];
      }
      call.store<BFloat16>(part, first_head + row, dim, sum, maximum, denominator);
    }
    __syncthreads();  // before the next part's
  }
}

template <typename Form>
void launch_form(const Launch& launch) {
  const DecoderShape& shape = launch.call.shape;
  const std::int64_t floats =
      mma_warps * (merged_rows_of(shape) * Form::blocks * mma::block_dims + 2 * mma::query_rows);
  cuda::launch("attend_parts_mma", attend_parts_mma<Form::blocks, Form::is_full>,
               {.blocks = launch.looping_blocks(launch.most.parts * shape.num_kv_heads *
                                                query_blocks_of(shape)),
                .threads = dim3(mma_threads),
                .dynamic_bytes = static_cast<std::size_t>(floats) * sizeof(float),
                .early = cuda::starts_early(launch.gpu)},
               launch.gpu.stream, launch.call);
}

}  // namespace

void attend_parts(const Launch& launch) {
  with_head_form(launch.call.shape, [&](auto form) { launch_form<decltype(form)>(launch); });
}

}  // namespace sluice::attention_cuda_kernels
