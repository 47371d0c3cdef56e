#pragma once

#include <algorithm>
#include <cstdint>

#include "codelets/attention/attention_plan_cuda.h"
#include "codelets/cuda/device.h"
#include "codelets/kernels/kv_page.h"
#include "codelets/kv_store/device_kv.h"
#include "codelets/runtime/shape.h"

/// What attention's kernels share. They are several sources, as each takes nvcc a minute for every
/// generation of GPUs.
namespace sluice::attention_cuda_kernels {

/// Results of the parts of split rows, not yet divided by their sums; see slots of AttentionPart.
struct Partial {
  float* sums;   ///< [slots, num_heads, padded_head_dim]
  float2* tops;  ///< [slots, num_heads]: maximum, denominator
};

/// What a head's sink, one of `sinks` or none where that is null, adds to a denominator that refers
/// to `maximum`, a score times log2(e).
__device__ inline float sink_weight(const float* sinks, std::int64_t head, float maximum) {
  constexpr float log2_e = 1.44269504F;
  return sinks == nullptr ? 0.0F : exp2f(log2_e * sinks[head] - maximum);
}

/// What all kernels here take.
struct Call {
  DecoderShape shape;
  DeviceKv kv;
  AttentionWork work;
  const std::byte* q;
  std::byte* out;
  const float* sinks;  ///< [num_heads], or null
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
      put_element(sum / (denominator + sink_weight(sinks, head, maximum)),
                  out_at<Element>(part.row, head) + dim);
      return;
    }
    const std::int64_t at = part.slot * shape.num_heads + head;
    partial.sums[at * shape.padded_head_dim() + dim] = sum;
    if (dim == 0) partial.tops[at] = make_float2(maximum, denominator);
  }
};

/// A call, and how much there may be to do.
struct Launch {
  const cuda::Context& gpu;
  const AttentionAmounts& most;
  const Call& call;

  /// For a list of at most so many: a few times what a multiprocessor runs at once, so that none
  /// waits long for the last.
  dim3 looping_blocks(std::int64_t entries) const {
    constexpr std::int64_t blocks_per_multiprocessor = 16;
    return dim3(static_cast<unsigned>(
        std::min<std::int64_t>(entries, blocks_per_multiprocessor * gpu.num_multiprocessors)));
  }
};

/// All parts in f32 arithmetic.
void attend_in_f32(const Launch& launch);
/// All long runs of rows, by tensor cores.
void attend_tiles(const Launch& launch);
/// All parts by tensor cores.
void attend_parts(const Launch& launch);

constexpr std::int64_t block_dims = 32;

/// A head's dimensions: blocks of 32, and whether it has all of them.
template <int Blocks, bool Full>
struct HeadForm {
  static constexpr int blocks = Blocks;
  static constexpr bool is_full = Full;
};

/// Calls `use` with the head's form, or one of more blocks, of which there are kernels.
template <typename Use>
void with_head_form(const DecoderShape& shape, Use use) {
  if (shape.head_dim == 2 * block_dims) return use(HeadForm<2, true>());
  if (shape.head_dim == 4 * block_dims) return use(HeadForm<4, true>());
  const std::int64_t blocks = (shape.padded_head_dim() + 31) / 32;
  if (blocks <= 1) return use(HeadForm<1, false>());
  if (blocks <= 2) return use(HeadForm<2, false>());
  if (blocks <= 3) return use(HeadForm<3, false>());
  if (blocks <= 4) return use(HeadForm<4, false>());
  use(HeadForm<8, false>());  // check_head_dim() was asked
}

}  // namespace sluice::attention_cuda_kernels
