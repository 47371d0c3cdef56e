#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/kv_store/device_kv.h"
#include "codelets/runtime/shape.h"

/// Attention of one row's heads over a part of its context in plain f32 arithmetic: for f32, for
/// GPUs whose tensor cores have no bf16, for odd heads, and for the split pair. Device code only.
namespace sluice::rows {

constexpr int num_warps = 4;
constexpr int block_threads = num_warps * cuda::warp_threads;
/// Tokens that a warp takes at a time, one a lane: two pages.
constexpr int step_tokens = cuda::warp_threads;
static_assert(step_tokens == 2 * page_tokens);
/// Most heads of a KV head's group that a block takes.
constexpr int max_heads = 8;

/// The elements in 32 bits of a page, see DecoderShape.
template <typename Element>
struct Word;
template <>
struct Word<float> {
  static constexpr int count = 1;
  static __device__ float element(std::uint32_t word, int /*i*/) { return __uint_as_float(word); }
};
template <>
struct Word<BFloat16> {
  static constexpr int count = 2;
  static __device__ float element(std::uint32_t word, int i) {
    return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000U);
  }
};

/// Some heads of one row that share a KV head, over tokens [first_token, end_token).
struct Query {
  DecoderShape shape;
  DeviceKv kv;
  const std::int32_t* pages = nullptr;
  int row = 0;
  int first_token = 0;
  int end_token = 0;
  int kv_head = 0;
  int first_head = 0;  ///< of the row
  int num_heads = 0;

  __device__ bool sees(int token) const { return token >= first_token && token < end_token; }
};

/// Blocks of up to max_heads heads that a KV head's group makes.
constexpr std::int64_t head_blocks_of(const DecoderShape& shape) {
  return (shape.group_size() + max_heads - 1) / max_heads;
}

/// Takes block `index` of all KV heads' heads.
__device__ inline void choose_heads(int index, Query& query) {
  const auto group = static_cast<int>(query.shape.group_size());
  const auto blocks = static_cast<int>(head_blocks_of(query.shape));
  query.kv_head = index / blocks;
  const int first = index % blocks * max_heads;
  query.first_head = query.kv_head * group + first;
  query.num_heads = group - first < max_heads ? group - first : max_heads;
}

/// log2(e) / sqrt(head_dim): weights are powers of 2.
__device__ inline float log2_scale(const DecoderShape& shape) {
  return 1.44269504F / sqrtf(static_cast<float>(shape.head_dim));
}

/// Puts the heads' queries into shared memory as [head_dim][max_heads], zeros where there is no
/// head. The whole block; a barrier must follow.
template <typename Element>
__device__ void load_queries(const Query& query, const Element* q, float* to) {
  const auto dims = static_cast<int>(query.shape.head_dim);
  const Element* from =
      q + query.row * query.shape.q_size() + std::int64_t{query.first_head} * dims;
  for (int i = static_cast<int>(threadIdx.x); i < max_heads * dims; i += block_threads) {
    const int head = i / dims;
    to[i % dims * max_heads + head] = head < query.num_heads ? to_float(from[i]) : 0.0F;
  }
}

/// q k of one token, which the row sees, for all heads.
template <typename Element>
__device__ void dot_products(const Query& query, int token, const float* queries,
                             float (&products)[max_heads]) {
  constexpr int per_word = Word<Element>::count;
  const auto dims = static_cast<int>(query.shape.head_dim);
  const auto in_page = static_cast<int>(page_tokens);
  const auto* keys =
      reinterpret_cast<const std::uint32_t*>(query.kv.at(query.pages[token / in_page])) +
      query.shape.k_offset(query.kv_head) / per_word + token % in_page;
  for (float& product : products) product = 0;
#pragma unroll 4
  for (int dim = 0; dim < dims; dim += per_word) {
    const std::uint32_t word = __ldg(keys + dim / per_word * in_page);
    for (int i = 0; i < per_word && dim + i < dims; ++i) {
      const float key = Word<Element>::element(word, i);
      const float* of_dim = queries + (dim + i) * max_heads;
#pragma unroll
      for (int head = 0; head < max_heads; ++head) products[head] += of_dim[head] * key;
    }
  }
}

/// What a warp has summed so far: 2^(s - maximum) v over the tokens, and 2^(s - maximum) by lane.
template <int Blocks>
struct Sums {
  float values[max_heads][Blocks];  ///< of dimension 32 block + lane
  float maximum[max_heads];
  float denominator[max_heads];

  __device__ Sums() {
#pragma unroll
    for (int head = 0; head < max_heads; ++head) {
      maximum[head] = -INFINITY;
      denominator[head] = 0;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) values[head][block] = 0;
    }
  }

  /// Takes each lane's scores of its token (-inf: not seen) times log2(e), and leaves the weights
  /// [step_tokens][max_heads] in shared memory, the warp's own.
  __device__ void weigh(int num_heads, const float (&scores)[max_heads], float* weights) {
    const auto lane = static_cast<int>(threadIdx.x) % cuda::warp_threads;
#pragma unroll
    for (int head = 0; head < max_heads; ++head) {
      if (head >= num_heads) break;
      const float highest =
          fmaxf(maximum[head],
                cuda::warp_reduce(scores[head], [](float a, float b) { return fmaxf(a, b); }));
      const float factor = exp2f(maximum[head] - highest);
      const float weight = exp2f(scores[head] - highest);
      maximum[head] = highest;
      denominator[head] = denominator[head] * factor + weight;
      weights[lane * max_heads + head] = weight;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) values[head][block] *= factor;
    }
    __syncwarp();
  }

  /// Adds the weighted values of the step's tokens from `first` on, of which it reads those that
  /// the row sees only: a weight of zero would not hide a NaN.
  template <typename Element>
  __device__ void add_values(const Query& query, int first, const float* weights) {
    constexpr int per_word = Word<Element>::count;
    const auto lane = static_cast<int>(threadIdx.x) % cuda::warp_threads;
    const auto padded = static_cast<int>(query.shape.padded_head_dim());
    const auto in_page = static_cast<int>(page_tokens);
    for (int token = first; token < first + step_tokens && token < query.end_token;
         token += per_word) {
      if (token + per_word <= query.first_token) continue;
      const auto* row =
          reinterpret_cast<const std::uint32_t*>(query.kv.at(query.pages[token / in_page])) +
          query.shape.v_offset(query.kv_head) / per_word + token % in_page / per_word * padded;
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        const int dim = block * cuda::warp_threads + lane;
        if (dim >= padded) continue;
        const std::uint32_t word = __ldg(row + dim);
        for (int i = 0; i < per_word; ++i) {
          if (!query.sees(token + i)) continue;
          const float value = Word<Element>::element(word, i);
          const float* of_token = weights + (token + i - first) * max_heads;
#pragma unroll
          for (int head = 0; head < max_heads; ++head) {
            if (head < query.num_heads) values[head][block] += of_token[head] * value;
          }
        }
      }
    }
    __syncwarp();  // before the next step's weights
  }
};

/// Shared memory of attend(), in floats.
constexpr std::int64_t weights_floats = num_warps * step_tokens * max_heads;
template <int Blocks>
constexpr std::int64_t merge_floats() {
  return num_warps * max_heads * (Blocks * cuda::warp_threads + 2);
}

/// Goes through the part's tokens, a warp every fourth step, and hands each head's result to
/// `store(head, dim, sum, maximum, denominator)`, where head counts from first_head: sum of
/// 2^(s - maximum) v and of 2^(s - maximum). `scores(token, result)` gives a seen token's scores
/// times log2(e). The whole block; `shared` holds weights_floats + merge_floats().
template <typename Element, int Blocks, typename Scores, typename Store>
__device__ void attend(const Query& query, float* shared, Scores scores, Store store) {
  const int warp = static_cast<int>(threadIdx.x) / cuda::warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % cuda::warp_threads;
  float* weights = shared + warp * step_tokens * max_heads;
  Sums<Blocks> sums;
  for (int first = (query.first_token / step_tokens + warp) * step_tokens; first < query.end_token;
       first += num_warps * step_tokens) {
    float mine[max_heads];
    if (query.sees(first + lane)) {
      scores(first + lane, mine);
    } else {
      for (float& score : mine) score = -INFINITY;
    }
    sums.weigh(query.num_heads, mine, weights);
    sums.template add_values<Element>(query, first, weights);
  }

  constexpr int dims = Blocks * cuda::warp_threads;
  float* values = shared + weights_floats;                // [num_warps][max_heads][dims]
  float* maxima = values + num_warps * max_heads * dims;  // [num_warps][max_heads]
  float* denominators = maxima + num_warps * max_heads;   // [num_warps][max_heads]
#pragma unroll
  for (int head = 0; head < max_heads; ++head) {
    if (head >= query.num_heads) break;
    const float denominator =
        cuda::warp_reduce(sums.denominator[head], [](float a, float b) { return a + b; });
    const int at = warp * max_heads + head;
    if (lane == 0) {
      maxima[at] = sums.maximum[head];
      denominators[at] = denominator;
    }
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
      values[at * dims + block * cuda::warp_threads + lane] = sums.values[head][block];
    }
  }
  __syncthreads();
  const auto head_dim = static_cast<int>(query.shape.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < query.num_heads * head_dim; i += block_threads) {
    const int head = i / head_dim;
    float maximum = -INFINITY;
    for (int w = 0; w < num_warps; ++w) maximum = fmaxf(maximum, maxima[w * max_heads + head]);
    float sum = 0;
    float denominator = 0;
    for (int w = 0; w < num_warps; ++w) {
      const int at = w * max_heads + head;
      const float factor = exp2f(maxima[at] - maximum);
      sum += factor * values[at * dims + i % head_dim];
      denominator += factor * denominators[at];
    }
    store(head, i % head_dim, sum, maximum, denominator);
  }
  __syncthreads();  // before the next part's
}

}  // namespace sluice::rows
