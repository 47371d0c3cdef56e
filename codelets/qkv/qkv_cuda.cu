#include <algorithm>

#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/linear.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/cuda/norm.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/kernels/kv_page.h"
#include "codelets/qkv/qkv.h"

namespace sluice {
namespace {

/// The weights of the norms of heads [head_dim]; null without them.
struct HeadNorms {
  const float* q = nullptr;
  const float* k = nullptr;
};

struct PlaceCall {
  DecoderShape shape;
  BatchView batch;
  const float* qkv;   ///< [rows, qkv_size]
  const float* rope;  ///< [rows, rotated_dims]: cos then sin; null without rotary embedding
  std::byte* q;       ///< [rows, q_size]
  std::byte* slab;    ///< or null
  std::byte* new_kv;  ///< [rows, 2 * kv_size], or null
  HeadNorms norms;    ///< that are still to be taken; place_rows_in_pairs only
};

/// Element `i` of the row's head that starts at `head`, its first `dim` rotated as
/// simd::rope_head() does.
__device__ float rotated(const float* head, const float* cos, int dim, int i) {
  const int half = dim / 2;
  if (i >= 2 * half) return head[i];
  const float* sin = cos + half;
  if (i < half) return head[i] * cos[i] - head[i + half] * sin[i];
  return head[i] * cos[i - half] + head[i - half] * sin[i - half];
}

/// q, k and v of one row for each block x, to where they belong; an element a thread. In 32 bits,
/// as most of the work is to find the place.
template <typename T>
__global__ void place_rows(PlaceCall call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  const DecoderShape& shape = call.shape;
  const std::int64_t row = blockIdx.x;
  const auto dim = static_cast<int>(shape.head_dim);
  const auto turned = static_cast<int>(shape.rotated_dims());
  const auto padded = static_cast<int>(shape.padded_head_dim());
  const auto num_heads = static_cast<int>(shape.num_heads);
  const auto num_kv_heads = static_cast<int>(shape.num_kv_heads);
  const auto q_size = static_cast<int>(shape.q_size());
  const auto qkv_size = static_cast<int>(shape.qkv_size());
  const float* qkv = call.qkv + row * shape.qkv_size();
  const BatchRow of_batch = call.batch.rows()[static_cast<std::size_t>(row)];
  constexpr auto in_page = static_cast<int>(page_tokens);
  const int token = of_batch.position % in_page;
  T* page = nullptr;
  if (call.slab != nullptr) {
    page = reinterpret_cast<T*>(page_of(shape, call.batch, of_batch, call.slab));
  }
  constexpr int word = static_cast<int>(sizeof(float) / sizeof(T));  // elements, see DecoderShape
  const auto step = static_cast<int>(gridDim.y * blockDim.x);
  for (int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); i < qkv_size; i += step) {
    const int head = i / dim;
    const int in_head = i % dim;
    const bool is_v = head >= num_heads + num_kv_heads;
    const float value = call.rope != nullptr && !is_v
                            ? rotated(qkv + head * dim, call.rope + row * turned, turned, in_head)
                            : qkv[i];
    if (head < num_heads) {
      put_element(value, reinterpret_cast<T*>(call.q) + row * q_size + i);
      continue;
    }
    if (call.new_kv != nullptr) {
      put_element(value,
                  reinterpret_cast<T*>(call.new_kv) + row * 2 * shape.kv_size() + i - q_size);
    }
    if (page == nullptr) continue;
    const int kv_head = head - num_heads - (is_v ? num_kv_heads : 0);
    const int of_head = 2 * kv_head * in_page * padded;
    const int at = is_v ? in_page * padded + (token / word * padded + in_head) * word + token % word
                        : (in_head / word * in_page + token) * word + in_head % word;
    put_element(value, page + of_head + at);
  }
}

struct HeadNormCall {
  DecoderShape shape;
  HeadNorms norms;
  float* qkv;  ///< [rows, qkv_size]
};

constexpr int heads_of_block = 4;  ///< a warp each

/// Takes the RMS norms of row x's heads of q and k, in place.
__global__ void normalise_heads(HeadNormCall call) {
  cuda::let_next_start();
  const DecoderShape& shape = call.shape;
  const auto warp = static_cast<int>(threadIdx.x) / cuda::warp_threads;
  const auto lane = static_cast<int>(threadIdx.x) % cuda::warp_threads;
  const int head = static_cast<int>(blockIdx.y) * heads_of_block + warp;
  cuda::wait_for_last();
  if (head >= static_cast<int>(shape.num_heads + shape.num_kv_heads)) return;
  const auto dim = static_cast<int>(shape.head_dim);
  float* of = call.qkv + blockIdx.x * shape.qkv_size() + head * dim;
  float squares = 0;
  for (int i = lane; i < dim; i += cuda::warp_threads) squares += of[i] * of[i];
  squares = cuda::warp_reduce(squares, [](float a, float b) { return a + b; });
  const float factor = 1 / sqrtf(squares / static_cast<float>(dim) + shape.norm_eps);
  const float* weight = head < static_cast<int>(shape.num_heads) ? call.norms.q : call.norms.k;
  for (int i = lane; i < dim; i += cuda::warp_threads) of[i] *= factor * weight[i];
}

void launch_head_norms(const cuda::Context& gpu, const HeadNormCall& call, std::int64_t rows) {
  const std::int64_t heads = call.shape.num_heads + call.shape.num_kv_heads;
  const std::int64_t blocks = (heads + heads_of_block - 1) / heads_of_block;
  cuda::launch("normalise_heads", normalise_heads,
               {.blocks = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(blocks)),
                .threads = dim3(heads_of_block * cuda::warp_threads),
                .early = cuda::starts_early(gpu)},
               gpu.stream, call);
}

/// Two neighbours in bf16; `to` is of an even one.
__device__ void put_pair(const float2& pair, BFloat16* to) {
  *reinterpret_cast<std::uint32_t*>(to) = cuda::bf16_pair(pair.x, pair.y);
}

/// Whether place_rows_in_pairs can take the norms: a head's threads are a part of a warp.
constexpr bool norms_in_pairs(const DecoderShape& shape) {
  const std::int64_t of_head = shape.head_dim / 4;
  return of_head > 0 && cuda::warp_threads % of_head == 0;
}

/// What all of the `threads` neighbouring lanes have, a power of two of them.
__device__ float sum_of_lanes(float value, int threads) {
  for (int step = threads / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(cuda::all_lanes, value, step);
  return value;
}

/// The same in bf16 for heads of a multiple of four dimensions, of which as many rotate: two
/// neighbours a thread, and the two that rotate with them, or two others that do not.
__global__ void place_rows_in_pairs(PlaceCall call) {
  cuda::let_next_start();
  const DecoderShape& shape = call.shape;
  const std::int64_t row = blockIdx.x;
  const auto dim = static_cast<int>(shape.head_dim);
  const auto turned = static_cast<int>(shape.rotated_dims());
  const auto padded = static_cast<int>(shape.padded_head_dim());
  const auto num_heads = static_cast<int>(shape.num_heads);
  const auto num_kv_heads = static_cast<int>(shape.num_kv_heads);
  const int of_head = dim / 4;  // a head's threads
  const int count = (num_heads + 2 * num_kv_heads) * of_head;
  const BatchRow of_batch = call.batch.rows()[static_cast<std::size_t>(row)];
  constexpr auto in_page = static_cast<int>(page_tokens);
  const int token = of_batch.position % in_page;
  BFloat16* page = nullptr;
  if (call.slab != nullptr) {
    page = reinterpret_cast<BFloat16*>(page_of(shape, call.batch, of_batch, call.slab));
  }
  BFloat16* q = reinterpret_cast<BFloat16*>(call.q) + row * shape.q_size();
  BFloat16* new_kv = nullptr;
  if (call.new_kv != nullptr) {
    new_kv = reinterpret_cast<BFloat16*>(call.new_kv) + row * 2 * shape.kv_size();
  }
  cuda::wait_for_last();
  const auto step = static_cast<int>(gridDim.y * blockDim.x);
  for (int begin = static_cast<int>(blockIdx.y * blockDim.x); begin < count; begin += step) {
    const int mine = begin + static_cast<int>(threadIdx.x);
    const int i = mine < count ? mine : count - 1;  // whole warps take part in norms
    const int head = i / of_head;
    const int pair = i % of_head * 2;
    const bool turns = pair < turned / 2;
    const int first = turns ? pair : pair + turned / 2;  // of the head's dimensions
    const int second = turns ? pair + turned / 2 : pair + dim / 2;
    const float* from = call.qkv + row * shape.qkv_size() + head * dim;
    float2 low = *reinterpret_cast<const float2*>(from + first);
    float2 high = *reinterpret_cast<const float2*>(from + second);
    const bool is_v = head >= num_heads + num_kv_heads;
    if (call.norms.q != nullptr) {
      const float squares = low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
      const float mean = sum_of_lanes(squares, of_head) / static_cast<float>(dim);
      const float factor = 1 / sqrtf(mean + shape.norm_eps);
      if (!is_v) {
        const float* weight = head < num_heads ? call.norms.q : call.norms.k;
        low = make_float2(low.x * factor * weight[first], low.y * factor * weight[first + 1]);
        high = make_float2(high.x * factor * weight[second], high.y * factor * weight[second + 1]);
      }
    }
    if (mine >= count) continue;
    if (call.rope != nullptr && turns && !is_v) {
      const float* rope = call.rope + row * turned + pair;
      const float2 cos = *reinterpret_cast<const float2*>(rope);
      const float2 sin = *reinterpret_cast<const float2*>(rope + turned / 2);
      const float2 was = low;
      low = make_float2(was.x * cos.x - high.x * sin.x, was.y * cos.y - high.y * sin.y);
      high = make_float2(high.x * cos.x + was.x * sin.x, high.y * cos.y + was.y * sin.y);
    }
    if (head < num_heads) {
      put_pair(low, q + head * dim + first);
      put_pair(high, q + head * dim + second);
      continue;
    }
    if (new_kv != nullptr) {
      BFloat16* to = new_kv + (head - num_heads) * dim;
      put_pair(low, to + first);
      put_pair(high, to + second);
    }
    if (page == nullptr) continue;
    const int kv_head = head - num_heads - (is_v ? num_kv_heads : 0);
    BFloat16* to = page + (is_v ? shape.v_offset(kv_head) : shape.k_offset(kv_head));
    if (is_v) {
      to += token / 2 * padded * 2 + token % 2;
      to[2 * first] = to_bf16(low.x);
      to[2 * first + 2] = to_bf16(low.y);
      to[2 * second] = to_bf16(high.x);
      to[2 * second + 2] = to_bf16(high.y);
    } else {
      put_pair(low, to + (first / 2 * in_page + token) * 2);
      put_pair(high, to + (second / 2 * in_page + token) * 2);
    }
  }
}

}  // namespace

void qkv_cuda(const cuda::Context& gpu, const QkvOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  LinearCall call{.weight = operands.weight,
                  .dtype = shape.dtype,
                  .rows = rows,
                  .x_stride = activation_stride(shape.hidden_size, shape.dtype),
                  .bias = VectorLayout::at(operands.vectors, at.qkv_bias)};
  cuda::WorkspaceLayout layout;
  const std::size_t qkv_at = layout.place<float>(rows * shape.qkv_size());
  const std::size_t input_at = layout.place<std::byte>(
      rows * call.x_stride * static_cast<std::int64_t>(size_bytes(shape.dtype)));
  const std::size_t scratch_at =
      layout.place<std::byte>(static_cast<std::int64_t>(cuda::linear_scratch_bytes(gpu, call)));
  std::byte* workspace = gpu.workspace.reserve(layout.bytes());

  cuda::block_input(gpu, shape,
                    {VectorLayout::at(operands.vectors, at.attention_norm_weight),
                     VectorLayout::at(operands.vectors, at.attention_norm_bias)},
                    operands.x, rows, workspace + input_at);
  call.x = workspace + input_at;
  call.dst = workspace + qkv_at;
  cuda::linear(gpu, call, workspace + scratch_at);

  auto* qkv = reinterpret_cast<float*>(workspace + qkv_at);
  const bool in_pairs =
      shape.dtype == DType::bf16 && shape.head_dim % 4 == 0 && shape.rotated_dims() % 4 == 0;
  const HeadNorms norms{VectorLayout::at(operands.vectors, at.q_norm_weight),
                        VectorLayout::at(operands.vectors, at.k_norm_weight)};
  const bool norms_apart = norms.q != nullptr && !(in_pairs && norms_in_pairs(shape));
  if (norms_apart) launch_head_norms(gpu, {.shape = shape, .norms = norms, .qkv = qkv}, rows);
  const PlaceCall place{.shape = shape,
                        .batch = operands.batch,
                        .qkv = qkv,
                        .rope = shape.rope ? operands.rope : nullptr,
                        .q = operands.q,
                        .slab = operands.slab,
                        .new_kv = operands.new_kv,
                        .norms = norms_apart ? HeadNorms{} : norms};
  // Few rows are spread over more blocks: two a multiprocessor.
  const std::int64_t items = in_pairs ? shape.qkv_size() / 4 : shape.qkv_size();
  constexpr std::int64_t most_threads = 256;
  const std::int64_t threads = std::min(most_threads, (items + 31) / 32 * 32);
  const std::int64_t most_blocks = (items + threads - 1) / threads;
  const std::int64_t blocks = std::min(
      most_blocks, 1 + 2 * std::int64_t{gpu.num_multiprocessors} / std::max<std::int64_t>(rows, 1));
  const auto kernel = in_pairs                    ? place_rows_in_pairs
                      : shape.dtype == DType::f32 ? place_rows<float>
                                                  : place_rows<BFloat16>;
  cuda::launch("place_rows", kernel,
               {.blocks = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(blocks)),
                .threads = dim3(static_cast<unsigned>(threads)),
                .early = cuda::starts_early(gpu)},
               gpu.stream, place);
}

}  // namespace sluice
