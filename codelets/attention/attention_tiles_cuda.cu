#include "codelets/attention/attention_rows_cuda.h"
#include "codelets/attention/attention_warps_cuda.h"
#include "codelets/cuda/async_copy.h"

namespace sluice::attention_cuda_kernels {
namespace {

/// Steps of 32 tokens that a tile takes at a time.
constexpr int steps_of(int blocks) { return blocks > 4 ? 1 : 2; }

/// Keys and values of a tile's tokens in shared memory. 16-byte pieces lie such that eight lanes
/// that load at once find them in different banks.
template <int Blocks>
struct StagedKv {
  static constexpr int num_pages = 2 * steps_of(Blocks);
  static constexpr int piece_words = 4;
  static constexpr int page_words = 8 * mma::block_dims * Blocks;  ///< of K, and of V
  static constexpr int page_pieces = page_words / piece_words;
  static constexpr int token_pieces = static_cast<int>(page_tokens) / piece_words;  ///< K's row
  static constexpr int row_pieces = mma::block_dims * Blocks / piece_words;         ///< V's row

  std::uint32_t* keys;
  std::uint32_t* values;

  __device__ std::uint32_t* key_at(int page, int pair, int piece) const {
    const int tokens = static_cast<int>(page_tokens);
    return keys + page * page_words + pair * tokens + (piece ^ (pair / 2 % 2) * 2) * piece_words;
  }
  __device__ std::uint32_t* value_at(int page, int row, int piece) const {
    const int from = 2 * (page % 2 * 2 + row / 4);
    return values + page * page_words + row * Blocks * mma::block_dims +
           (piece ^ from) * piece_words;
  }
  static constexpr std::size_t bytes() {
    return 2 * sizeof(std::uint32_t) * num_pages * page_words;
  }
};

/// Block (x, y): 64 queries of one sequence, 16 a warp, of KV head y. Its keys come while the
/// values before them are used, and the other way round. `Full` as in attend_parts_mma.
template <int Blocks, bool Full>
__global__ void __launch_bounds__(mma_threads, blocks_at_once(Blocks)) attend_tiles_mma(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  if (static_cast<int>(blockIdx.x) >= call.work.counts->tiles) return;
  using Staged = StagedKv<Blocks>;
  constexpr int steps = steps_of(Blocks);
  constexpr int tile_tokens = steps * mma::step_tokens;
  auto* memory = cuda::dynamic_shared<std::uint32_t>();
  const Staged staged{memory, memory + Staged::num_pages * Staged::page_words};
  const AttentionTile tile = call.work.tiles[blockIdx.x];
  const DecoderShape& shape = call.shape;
  const auto group = static_cast<int>(shape.group_size());
  constexpr int dims = Blocks * mma::block_dims;
  const int head_dim = Full ? dims : static_cast<int>(shape.head_dim);
  const int padded = Full ? dims : static_cast<int>(shape.padded_head_dim());
  const auto window = shape.sliding_window_tokens;
  const auto in_page = static_cast<int>(page_tokens);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const auto sees = [&](int query) {  // those behind the last one as the last one
    const int last = tile.end_query - 1;
    const int position = tile.first_position + (query < last ? query : last) / group;
    return mma::Visible{static_cast<int>(simd::first_visible_token(position, window)),
                        position + 1};
  };
  const mma::Visible of_block{sees(tile.first_query).first, sees(tile.end_query - 1).end};

  mma::Warp<Blocks, steps> warp;
  const mma::Lane& lane = warp.lane;
  const int first_query =
      tile.first_query + static_cast<int>(threadIdx.x) / cuda::warp_threads * mma::query_rows;
  warp.load_queries(head_dim, [&](int row) -> const BFloat16* {
    const int query = first_query + row;
    if (query >= tile.end_query) return nullptr;
    return reinterpret_cast<const BFloat16*>(call.q) +
           (tile.first_row + query / group) * shape.q_size() +
           std::int64_t{kv_head * group + query % group} * head_dim;
  });
  const mma::Visible of_warp{sees(first_query).first, sees(first_query + mma::query_rows - 1).end};
  const mma::Visible all_see{sees(first_query + mma::query_rows - 1).first, sees(first_query).end};
  const mma::Visible of_rows[2] = {sees(first_query + lane.group),
                                   sees(first_query + lane.group + 8)};
  const float scale = rows::log2_scale(shape);

  // The pages of the tokens that are staged, and of those that come next; found by one thread each.
  __shared__ const std::byte* found[2][Staged::num_pages];
  const SeenPages pages(tile.pages, of_block);
  const auto page = static_cast<int>(threadIdx.x);
  const bool finds = page < Staged::num_pages;
  const auto page_of = [&](int first_token) { return pages.of(first_token + page * in_page); };

  cuda::AsyncCopies copies;
  // `copy(page, i, from)` for this thread's 16-byte pieces i of each page's K or V, which begins at
  // `from`.
  const auto for_pieces = [&](int slot, std::int64_t offset, auto copy) {
#pragma unroll
    for (int of_page = 0; of_page < Staged::num_pages; ++of_page) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(found[slot][of_page]) + offset / 2;
#pragma unroll
      for (int first = 0; first < Staged::page_pieces; first += mma_threads) {
        const int i = first + static_cast<int>(threadIdx.x);
        if (Staged::page_pieces % mma_threads == 0 || i < Staged::page_pieces)
          copy(of_page, i, from);
      }
    }
  };
  const auto start_keys = [&](int slot) {
    for_pieces(slot, shape.k_offset(kv_head), [&](int of_page, int i, const std::uint32_t* from) {
      const int pair = i / Staged::token_pieces;
      if (!Full && 2 * pair >= padded) return;
      // Those beyond head_dim as zeros, whatever the page holds.
      const bool is_there = Full || 2 * pair < head_dim;
      copies.start(staged.key_at(of_page, pair, i % Staged::token_pieces),
                   is_there ? from + i * Staged::piece_words : nullptr);
    });
  };
  const auto start_values = [&](int slot) {
    for_pieces(slot, shape.v_offset(kv_head), [&](int of_page, int i, const std::uint32_t* from) {
      const int row = i / Staged::row_pieces;
      const int piece = i % Staged::row_pieces;
      if (!Full && piece * Staged::piece_words >= padded) return;
      copies.start(staged.value_at(of_page, row, piece),
                   from + row * padded + piece * Staged::piece_words);
    });
  };

  const int begin = of_block.first / tile_tokens * tile_tokens;
  if (finds) found[0][page] = call.kv.at(page_of(begin));
  __syncthreads();
  int slot = 0;
  start_keys(slot);
  for (int first = begin; first < of_block.end; first += tile_tokens) {
    copies.wait();
    __syncthreads();  // the keys are there, and nobody needs the values before
    start_values(slot);
    const bool goes_on = first + tile_tokens < of_block.end;
    std::int32_t next_page = 0;
    if (finds && goes_on) next_page = page_of(first + tile_tokens);
    const bool takes_part = first < of_warp.end && first + tile_tokens > of_warp.first;
    mma::Weights weights[steps];
    if (takes_part) {
      mma::Scores scores[steps];
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        warp.score(padded / 16, scores[step], [&](int k, int half) {
          return *reinterpret_cast<const uint4*>(staged.key_at(
              2 * step + lane.key_page(), 8 * k + lane.place + 4 * half, lane.group % 4));
        });
      }
      if (first >= all_see.first && first + tile_tokens <= all_see.end) {
        warp.template weigh<false>(scores, first, scale, of_rows, weights);
      } else {
        warp.template weigh<true>(scores, first, scale, of_rows, weights);
      }
    }
    if (finds && goes_on) found[1 - slot][page] = call.kv.at(next_page);
    copies.wait();
    __syncthreads();  // the values are there, and nobody needs the keys
    slot = 1 - slot;
    if (goes_on) start_keys(slot);
    if (!takes_part) continue;
    const auto add_values = [&](auto shown) {
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        warp.add_values(weights[step], [&](int block, int u) {
          return shown(*reinterpret_cast<const uint4*>(
                           staged.value_at(2 * step + lane.value_page(), lane.value_row(u),
                                           lane.value_column(block) / Staged::piece_words)),
                       first + step * mma::step_tokens + 8 * lane.place + 2 * u);
        });
      }
    };
    if (first >= of_block.first && first + tile_tokens <= of_block.end) {
      add_values([](const uint4& words, int /*token*/) { return words; });
    } else {
      add_values(
          [&](const uint4& words, int token) { return mma::hide_unseen(words, token, of_block); });
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float denominator = warp.whole_denominator(r);
    const int query = first_query + lane.group + 8 * r;
    if (query >= tile.end_query) continue;
    const int head = kv_head * group + query % group;
    const float share = 1 / (denominator + sink_weight(call.sinks, head, warp.maximum[r]));
    BFloat16* out = call.out_at<BFloat16>(tile.first_row + query / group, head);
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int dim = block * mma::block_dims + 8 * lane.place + i;
        if (!Full && dim >= head_dim) continue;
        const std::uint32_t pair =
            cuda::bf16_pair(warp.sum_at(r, block, i) * share, warp.sum_at(r, block, i + 1) * share);
        *reinterpret_cast<std::uint32_t*>(out + dim) = pair;
      }
    }
  }
}

template <typename Form>
void launch_form(const Launch& launch) {
  cuda::launch("attend_tiles", attend_tiles_mma<Form::blocks, Form::is_full>,
               {.blocks = dim3(static_cast<unsigned>(launch.most.tiles),
                               static_cast<unsigned>(launch.call.shape.num_kv_heads)),
                .threads = dim3(mma_threads),
                .dynamic_bytes = StagedKv<Form::blocks>::bytes(),
                .early = cuda::starts_early(launch.gpu)},
               launch.gpu.stream, launch.call);
}

}  // namespace

void attend_tiles(const Launch& launch) {
  with_head_form(launch.call.shape, [&](auto form) { launch_form<decltype(form)>(launch); });
}

}  // namespace sluice::attention_cuda_kernels
