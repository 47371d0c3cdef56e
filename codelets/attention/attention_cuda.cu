#include <algorithm>
#include <type_traits>

#include "codelets/attention/attention.h"
#include "codelets/attention/attention_mma_cuda.h"
#include "codelets/attention/attention_plan_cuda.h"
#include "codelets/attention/attention_rows_cuda.h"
#include "codelets/attention/head_dim_cuda.h"
#include "codelets/cuda/async_copy.h"
#include "codelets/kernels/kv_page.h"

namespace sluice {
namespace {

/// Blocks of a grid whose blocks go through a list, for each multiprocessor: a few times what it
/// runs at once, so that none waits long for the last.
constexpr std::int64_t blocks_per_multiprocessor = 16;

/// Results of the parts of split rows, not yet divided by their sums; see slots of AttentionPart.
struct Partial {
  float* sums;   ///< [slots, num_heads, padded_head_dim]
  float2* tops;  ///< [slots, num_heads]: maximum, denominator
};

/// What all kernels here take.
struct Call {
  DecoderShape shape;
  DeviceKv kv;
  AttentionWork work;
  const std::byte* q;
  std::byte* out;
  Partial partial;

  __device__ std::int64_t out_stride() const {
    return activation_stride(shape.q_size(), shape.dtype);
  }
  template <typename Element>
  __device__ Element* out_at(std::int64_t row, std::int64_t head) const {
    return reinterpret_cast<Element*>(out) + row * out_stride() + head * shape.head_dim;
  }
  /// One element of a part's result.
  template <typename Element>
  __device__ void store(const AttentionPart& part, std::int64_t head, int dim, float sum,
                        float maximum, float denominator) const {
    if (part.slot < 0) {
      put_element(sum / denominator, out_at<Element>(part.row, head) + dim);
      return;
    }
    const std::int64_t at = part.slot * shape.num_heads + head;
    partial.sums[at * shape.padded_head_dim() + dim] = sum;
    if (dim == 0) partial.tops[at] = make_float2(maximum, denominator);
  }
};

/// Parts in f32 arithmetic: block i, i + gridDim.x ... of (part, KV head's heads).
template <typename Element, int Blocks>
__global__ void __launch_bounds__(rows::block_threads) attend_parts(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  auto* queries = cuda::dynamic_shared<float>();
  float* shared = queries + rows::max_heads * call.shape.head_dim;
  const auto head_blocks =
      static_cast<int>(call.shape.num_kv_heads * rows::head_blocks_of(call.shape));
  const float scale = rows::log2_scale(call.shape);
  const std::int64_t count = std::int64_t{call.work.counts->parts} * head_blocks;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const AttentionPart part = call.work.parts[i / head_blocks];
    rows::Query query{.shape = call.shape,
                      .kv = call.kv,
                      .pages = part.pages,
                      .row = part.row,
                      .first_token = part.first_token,
                      .end_token = part.end_token};
    rows::choose_heads(static_cast<int>(i % head_blocks), query);
    rows::load_queries(query, reinterpret_cast<const Element*>(call.q), queries);
    __syncthreads();
    rows::attend<Element, Blocks>(
        query, shared,
        [&](int token, float(&scores)[rows::max_heads]) {
          rows::dot_products<Element>(query, token, queries, scores);
          for (float& score : scores) score *= scale;
        },
        [&](int head, int dim, float sum, float maximum, float denominator) {
          call.store<Element>(part, query.first_head + head, dim, sum, maximum, denominator);
        });
  }
}

/// Puts the parts of block x's split row together, for the heads of KV head y.
template <typename Element>
__global__ void combine_parts(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  if (static_cast<int>(blockIdx.x) >= call.work.counts->split_rows) return;
  const AttentionSplitRow row = call.work.split_rows[blockIdx.x];
  const auto group = static_cast<int>(call.shape.group_size());
  const auto dims = static_cast<int>(call.shape.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < group * dims; i += static_cast<int>(blockDim.x)) {
    const std::int64_t head = blockIdx.y * call.shape.group_size() + i / dims;
    const std::int64_t first = row.first_slot * call.shape.num_heads + head;
    float maximum = -INFINITY;
    for (int slot = 0; slot < row.num_slots; ++slot) {
      maximum = fmaxf(maximum, call.partial.tops[first + slot * call.shape.num_heads].x);
    }
    float sum = 0;
    float denominator = 0;
    for (int slot = 0; slot < row.num_slots; ++slot) {
      const std::int64_t at = first + slot * call.shape.num_heads;
      const float2 top = call.partial.tops[at];
      const float factor = exp2f(top.x - maximum);
      sum += factor * call.partial.sums[at * call.shape.padded_head_dim() + i % dims];
      denominator += factor * top.y;
    }
    put_element(sum / denominator, call.out_at<Element>(row.row, head) + i % dims);
  }
}

namespace mma = tensor_attention;

constexpr int mma_warps = 4;
constexpr int mma_threads = mma_warps * cuda::warp_threads;
static_assert(mma_warps * mma::query_rows == tile_queries);

/// Of threads that a multiprocessor runs: as many as have room for what they keep in registers.
constexpr int blocks_at_once(int blocks) { return blocks > 4 ? 1 : blocks > 2 ? 2 : 3; }

/// Blocks of 16 heads that a KV head's group makes.
constexpr std::int64_t query_blocks_of(const DecoderShape& shape) {
  return (shape.group_size() + mma::query_rows - 1) / mma::query_rows;
}
/// Rows of shared memory that each warp needs to leave its sums.
constexpr std::int64_t merged_rows_of(const DecoderShape& shape) {
  return shape.group_size() < mma::query_rows ? shape.group_size() : mma::query_rows;
}

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

/// The same as attend_parts with tensor cores: the heads of a group are the rows of a product. A
/// warp takes every fourth step of 32 tokens, straight from the pages. `Full`: a head has all of
/// the blocks' dimensions.
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
__global__ void __launch_bounds__(mma_threads, blocks_at_once(Blocks)) attend_tiles(Call call) {
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
    const float share = 1 / warp.whole_denominator(r);
    const int query = first_query + lane.group + 8 * r;
    if (query >= tile.end_query) continue;
    BFloat16* out =
        call.out_at<BFloat16>(tile.first_row + query / group, kv_head * group + query % group);
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

/// A head's dimensions: blocks of 32, and whether it has all of them.
template <int Blocks, bool Full>
struct HeadForm {
  static constexpr int blocks = Blocks;
  static constexpr bool is_full = Full;
};

/// Calls `use` with the head's form, or one of more blocks, of which there are kernels.
template <typename Use>
void with_head_form(const DecoderShape& shape, Use use) {
  if (shape.head_dim == 2 * mma::block_dims) return use(HeadForm<2, true>());
  if (shape.head_dim == 4 * mma::block_dims) return use(HeadForm<4, true>());
  const std::int64_t blocks = (shape.padded_head_dim() + 31) / 32;
  if (blocks <= 1) return use(HeadForm<1, false>());
  if (blocks <= 2) return use(HeadForm<2, false>());
  if (blocks <= 3) return use(HeadForm<3, false>());
  if (blocks <= 4) return use(HeadForm<4, false>());
  use(HeadForm<8, false>());  // check_head_dim() was asked
}

class Attention {
 public:
  Attention(const cuda::Context& gpu, const AttentionOperands& operands)
      : gpu_(gpu),
        operands_(operands),
        shape_(operands.args->shape),
        // The products take pairs of dimensions.
        tensor_cores_(shape_.dtype == DType::bf16 && shape_.head_dim % 2 == 0 &&
                      gpu.compute_capability >= 80),
        kv_plan_(operands.args->tag, shape_, operands.args->kv, layout_),
        plan_(*operands.args, tensor_cores_ ? LongRuns::as_tiles : LongRuns::row_by_row, layout_),
        sums_at_(
            layout_.place<float>(plan_.most().slots * shape_.num_heads * shape_.padded_head_dim())),
        tops_at_(layout_.place<float2>(plan_.most().slots * shape_.num_heads)) {}

  void run() {
    std::byte* memory = gpu_.workspace.reserve(layout_.bytes());
    const DeviceKv kv =
        kv_plan_.start(gpu_, operands_.batch, operands_.slab, operands_.new_kv, memory);
    const Call call{.shape = shape_,
                    .kv = kv,
                    .work = plan_.start(gpu_, operands_.batch, kv, memory),
                    .q = operands_.q,
                    .out = operands_.out,
                    .partial = {reinterpret_cast<float*>(memory + sums_at_),
                                reinterpret_cast<float2*>(memory + tops_at_)}};
    with_head_form(shape_, [&](auto form) {
      using Form = decltype(form);
      if (tensor_cores_) {
        attend_with_tensor_cores<Form>(call);
      } else if (shape_.dtype == DType::bf16) {
        attend_in_f32<BFloat16, Form::blocks>(call);
      } else {
        attend_in_f32<float, Form::blocks>(call);
      }
    });
    shape_.dtype == DType::bf16 ? combine<BFloat16>(call) : combine<float>(call);
  }

 private:
  /// For a list of at most so many.
  dim3 looping_blocks(std::int64_t most) const {
    return dim3(static_cast<unsigned>(
        std::min<std::int64_t>(most, blocks_per_multiprocessor * gpu_.num_multiprocessors)));
  }

  template <typename Element, int Blocks>
  void attend_in_f32(const Call& call) const {
    const std::int64_t floats =
        rows::max_heads * shape_.head_dim + rows::weights_floats + rows::merge_floats<Blocks>();
    cuda::launch("attend_parts", attend_parts<Element, Blocks>,
                 {.blocks = looping_blocks(plan_.most().parts * shape_.num_kv_heads *
                                           rows::head_blocks_of(shape_)),
                  .threads = dim3(rows::block_threads),
                  .dynamic_bytes = static_cast<std::size_t>(floats) * sizeof(float),
                  .early = cuda::starts_early(gpu_)},
                 gpu_.stream, call);
  }

  template <typename Form>
  void attend_with_tensor_cores(const Call& call) const {
    const std::int64_t floats =
        mma_warps * (merged_rows_of(shape_) * Form::blocks * mma::block_dims + 2 * mma::query_rows);
    cuda::launch("attend_tiles", attend_tiles<Form::blocks, Form::is_full>,
                 {.blocks = dim3(static_cast<unsigned>(plan_.most().tiles),
                                 static_cast<unsigned>(shape_.num_kv_heads)),
                  .threads = dim3(mma_threads),
                  .dynamic_bytes = StagedKv<Form::blocks>::bytes(),
                  .early = cuda::starts_early(gpu_)},
                 gpu_.stream, call);
    cuda::launch("attend_parts_mma", attend_parts_mma<Form::blocks, Form::is_full>,
                 {.blocks = looping_blocks(plan_.most().parts * shape_.num_kv_heads *
                                           query_blocks_of(shape_)),
                  .threads = dim3(mma_threads),
                  .dynamic_bytes = static_cast<std::size_t>(floats) * sizeof(float),
                  .early = cuda::starts_early(gpu_)},
                 gpu_.stream, call);
  }

  template <typename Element>
  void combine(const Call& call) const {
    cuda::launch("combine_parts", combine_parts<Element>,
                 {.blocks = dim3(static_cast<unsigned>(plan_.most().split_rows),
                                 static_cast<unsigned>(shape_.num_kv_heads)),
                  .threads = dim3(128),
                  .early = cuda::starts_early(gpu_)},
                 gpu_.stream, call);
  }

  const cuda::Context& gpu_;
  const AttentionOperands& operands_;
  const DecoderShape& shape_;
  bool tensor_cores_;
  cuda::WorkspaceLayout layout_;
  DeviceKvPlan kv_plan_;
  AttentionPlan plan_;
  std::size_t sums_at_, tops_at_;
};

}  // namespace

void attention_cuda(const cuda::Context& gpu, const AttentionOperands& operands) {
  check_head_dim(operands.args->shape);
  Attention(gpu, operands).run();
}

}  // namespace sluice
