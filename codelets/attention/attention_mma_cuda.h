#pragma once

#include <cstdint>

#include "codelets/cuda/mma.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/runtime/batch.h"

/// One warp's flash attention for 16 queries in bf16 with tensor cores (mma.sync.m16n8k16). A KV
/// page's words are B's: K [head_dim / 2][16 tokens] for q K^T with a token a column, V [8 pairs of
/// tokens][padded_head_dim] for weights V with a dimension a column. Which token or dimension is
/// which column of which product is ours to choose, so each lane loads 16 bytes at a time, and what
/// it holds of the scores is what it needs as A of the second product. With lane = 4 group + place,
/// of a step of 32 tokens (two pages) and 32 dimensions (a block):
///
///   keys:    word t of load (k pair) is K of token 16 (group / 4) + 4 (group % 4) + t
///   scores:  row group (+ 8), tokens 8 place .. 8 place + 7
///   values:  word d of load (u = 0..3) is V of tokens 8 place + 2 u and + 1, dimension 4 group + d
///   sums:    row group (+ 8), dimensions 8 place .. 8 place + 7
namespace sluice::tensor_attention {

constexpr int query_rows = 16;
constexpr int step_tokens = 2 * static_cast<int>(page_tokens);
constexpr int block_dims = 32;

struct Lane {
  int group, place;
  __device__ Lane()
      : group(static_cast<int>(threadIdx.x) % cuda::warp_threads / 4),
        place(static_cast<int>(threadIdx.x) % 4) {}
  /// Of a step's two pages, the one whose keys this lane loads.
  __device__ int key_page() const { return group / 4; }
  /// Word of a page's K of one head, 4 follow; `pair` of the head's dimensions.
  __device__ int key_word(int pair) const {
    return pair * static_cast<int>(page_tokens) + group % 4 * 4;
  }
  __device__ int value_page() const { return place / 2; }
  /// Row of a page's V, for load `u`.
  __device__ int value_row(int u) const { return place % 2 * 4 + u; }
  /// Column of that row, 4 follow.
  __device__ int value_column(int block) const { return block * block_dims + group * 4; }
};

__device__ inline float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

__device__ inline std::uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/// 2^x, zero where that is denormal.
__device__ inline float exp2_of(float x) {
#if !defined(SLUICE_CUDA_EMULATION) && defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/// Tokens [first, end) that a row sees.
struct Visible {
  int first, end;
  __device__ bool has(int token) const { return token >= first && token < end; }
};

/// The queries' scores of a step's tokens: value e and 2 + e of [t] are rows group and group + 8,
/// token 8 place + 4 e + t.
struct Scores {
  cuda::MmaD of[4];
};

/// The weights of the two rows, as A of the second product: each the sum of two bf16, as one alone
/// would be off by 2^-9.
struct Weights {
  cuda::MmaA high[2];
  cuda::MmaA rest[2];
};

/// `Blocks` blocks of 32 dimensions, `Steps` steps of 32 tokens at a time.
template <int Blocks, int Steps>
struct Warp {
  Lane lane;
  cuda::MmaA queries[2 * Blocks];
  cuda::MmaD sums[Blocks][4];  ///< of [d]: dimension 32 block + 8 place + 4 e + d, as Scores
  float maximum[2];            ///< of rows group and group + 8, times log2(e)
  float denominator[2];        ///< this lane's share

  __device__ Warp() {
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (cuda::MmaD& sum : sums[block]) sum = {{0, 0, 0, 0}};
    }
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -INFINITY;
      denominator[r] = 0;
    }
  }

  /// `row_at(row)` gives a query's bf16 [head_dim], or null: zeros. head_dim is even.
  template <typename RowAt>
  __device__ void load_queries(int head_dim, RowAt row_at) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const BFloat16* row = row_at(lane.group + i % 2 * 8);
#pragma unroll
      for (int k = 0; k < 2 * Blocks; ++k) {
        const int dim = 16 * k + 2 * lane.place + i / 2 * 8;
        queries[k].word[i] = row != nullptr && dim < head_dim
                                 ? row[dim].bits | static_cast<std::uint32_t>(row[dim + 1].bits)
                                                       << 16
                                 : 0;
      }
    }
  }

  /// `keys(k, i)` gives this lane's load of pair 8 k + place + 4 i, of which there are `num_k` * 8.
  template <typename Keys>
  __device__ void score(int num_k, Scores& scores, Keys keys) {
#pragma unroll
    for (cuda::MmaD& of : scores.of) of = {{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < 2 * Blocks; ++k) {
      if (k >= num_k) break;
      const uint4 low = keys(k, 0);
      const uint4 high = keys(k, 1);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        cuda::mma_16x8x16<DType::bf16>(scores.of[t], queries[k],
                                       {{word_of(low, t), word_of(high, t)}});
      }
    }
  }

  /// One step of the running softmax over the steps from `first_token` on, whose scores `scale`
  /// multiplies; without `Hides` the rows see all of them. All that was summed refers to the new
  /// maximum afterwards.
  template <bool Hides>
  __device__ void weigh(const Scores (&scores)[Steps], int first_token, float scale,
                        const Visible (&visible)[2], Weights (&weights)[Steps]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float score[Steps][2][4];
      float highest = maximum[r];
#pragma unroll
      for (int step = 0; step < Steps; ++step) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int token = first_token + step * step_tokens + 8 * lane.place + i;
          float& mine = score[step][i / 4][i % 4];
          mine = !Hides || visible[r].has(token)
                     ? scores[step].of[i % 4].value[2 * r + i / 4] * scale
                     : -INFINITY;
          highest = fmaxf(highest, mine);
        }
      }
      highest = fmaxf(highest, __shfl_xor_sync(cuda::all_lanes, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(cuda::all_lanes, highest, 2));
      const float reference = highest == -INFINITY ? 0.0F : highest;  // nothing seen yet
      const float factor = exp2_of(maximum[r] - reference);
      maximum[r] = highest;
      denominator[r] *= factor;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
#pragma unroll
        for (cuda::MmaD& sum : sums[block]) {
          sum.value[2 * r] *= factor;
          sum.value[2 * r + 1] *= factor;
        }
      }
#pragma unroll
      for (int step = 0; step < Steps; ++step) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const float low = exp2_of(score[step][e][2 * pair] - reference);
            const float high = exp2_of(score[step][e][2 * pair + 1] - reference);
            denominator[r] += low + high;
            const std::uint32_t rounded = cuda::bf16_pair(low, high);
            weights[step].high[e].word[r + 2 * pair] = rounded;
            weights[step].rest[e].word[r + 2 * pair] =
                cuda::bf16_pair(low - low_of(rounded), high - high_of(rounded));
          }
        }
      }
    }
  }

  /// `values(block, u)` gives this lane's load, see Lane, zero where no row sees the token: a
  /// weight of zero would not hide a NaN.
  template <typename Values>
  __device__ void add_values(const Weights& weights, Values values) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        const uint4 low = values(block, 2 * e);
        const uint4 high = values(block, 2 * e + 1);
#pragma unroll
        for (int d = 0; d < 4; ++d) {
          const cuda::MmaB b{{word_of(low, d), word_of(high, d)}};
          cuda::mma_16x8x16<DType::bf16>(sums[block][d], weights.high[e], b);
          cuda::mma_16x8x16<DType::bf16>(sums[block][d], weights.rest[e], b);
        }
      }
    }
  }

  /// Of rows group and group + 8.
  __device__ float whole_denominator(int r) const {
    float sum = denominator[r];
    sum += __shfl_xor_sync(cuda::all_lanes, sum, 1);
    return sum + __shfl_xor_sync(cuda::all_lanes, sum, 2);
  }
  /// Sum of row group + 8 r, dimension 32 block + 8 place + i.
  __device__ float sum_at(int r, int block, int i) const {
    return sums[block][i % 4].value[2 * r + i / 4];
  }
};

/// `words` of tokens `token` and `token` + 1 side by side, those that are not seen as zeros.
__device__ inline uint4 hide_unseen(uint4 words, int token, const Visible& seen) {
  const std::uint32_t mask =
      (seen.has(token) ? 0x0000ffffU : 0U) | (seen.has(token + 1) ? 0xffff0000U : 0U);
  words.x &= mask;
  words.y &= mask;
  words.z &= mask;
  words.w &= mask;
  return words;
}

}  // namespace sluice::tensor_attention
