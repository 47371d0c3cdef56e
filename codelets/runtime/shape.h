#pragma once

#include <cstddef>
#include <cstdint>

#include "base/architecture.h"
#include "base/dtype.h"
#include "codelets/runtime/batch.h"

namespace sluice {

/// What the kernels of a mixture of experts need to know of it. Plain data.
struct MixtureShape {
  std::int32_t num_experts = 0;        ///< 0: one FFN
  std::int32_t experts_per_token = 0;  ///< that a row goes through
  RouterKind router = RouterKind::softmax_first;
  bool norm_chosen = true;            ///< see ModelConfig
  bool expert_bias = false;           ///< each expert has biases of gate, fc1 and fc2
  bool shared_ffn = false;            ///< all rows go through one more FFN
  std::int32_t num_groups = 1;        ///< of neighbouring experts, a sigmoid router's
  std::int32_t groups_per_token = 1;  ///< whose experts a row may go through
  float routed_scaling = 1;           ///< multiplies the weights of a sigmoid router

  constexpr std::int32_t experts_per_group() const { return num_experts / num_groups; }
  bool operator==(const MixtureShape&) const = default;
};

/// One of the experts that a row goes through, and its weight in their sum.
struct ExpertChoice {
  std::int32_t expert = 0;
  float weight = 0;
};

/// What a decoder layer's kernels need to know of the model. Plain data: it travels in codelet
/// arguments.
struct DecoderShape {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;
  std::int64_t sliding_window_tokens = 0;  ///< 0: no window
  NormKind norm = NormKind::rms_norm;
  NormPlace norm_place = NormPlace::pre;
  float norm_eps = 1e-5F;
  Activation activation = Activation::silu;
  float swiglu_limit = 0;  ///< of Activation::clamped_swiglu
  bool gated_ffn = true;
  bool rope = true;
  std::int64_t rotary_dim =
      0;                      ///< RoPE turns so many of a head's dimensions, the first ones; 0: all
  DType dtype = DType::bf16;  ///< of GEMM operands and KV; the residual stream is always f32

  constexpr std::int64_t q_size() const { return num_heads * head_dim; }
  constexpr std::int64_t kv_size() const { return num_kv_heads * head_dim; }
  constexpr std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  constexpr std::int64_t rotated_dims() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  constexpr std::int64_t group_size() const { return num_heads / num_kv_heads; }

  /// One page of a slab holds, for each KV head, K [padded_head_dim / P, page_tokens, P] and then V
  /// [page_tokens / P, padded_head_dim, P], where P elements make up 32 bits: 2 of bf16, 1 of f32.
  /// So a vector holds P neighbouring products' operands for its lanes, each lane a token in K and
  /// a dimension in V: no sum runs across lanes, and pages side by side are what a GEMM with bf16
  /// dot products reads. The padding is zero.
  constexpr std::int64_t page_elements() const {
    return 2 * num_kv_heads * page_tokens * padded_head_dim();
  }
  constexpr std::int64_t padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  constexpr std::int64_t elements_per_word() const {
    return static_cast<std::int64_t>(4 / size_bytes(dtype));
  }
  /// Elements from a page's start to K of one head, and V.
  constexpr std::int64_t k_offset(std::int64_t kv_head) const {
    return 2 * kv_head * page_tokens * padded_head_dim();
  }
  constexpr std::int64_t v_offset(std::int64_t kv_head) const {
    return k_offset(kv_head) + page_tokens * padded_head_dim();
  }
  /// Element of a page that holds k[token, dim] of one head, `token` counted within the page.
  constexpr std::int64_t k_index(std::int64_t kv_head, std::int64_t token, std::int64_t dim) const {
    const std::int64_t word = elements_per_word();
    return k_offset(kv_head) + (dim / word * page_tokens + token) * word + dim % word;
  }
  constexpr std::int64_t v_index(std::int64_t kv_head, std::int64_t token, std::int64_t dim) const {
    const std::int64_t word = elements_per_word();
    return v_offset(kv_head) + (token / word * padded_head_dim() + dim) * word + token % word;
  }
  constexpr std::size_t page_bytes() const {
    return static_cast<std::size_t>(page_elements()) * size_bytes(dtype);
  }

  bool operator==(const DecoderShape&) const = default;
};

/// Elements between the rows of a GEMM input `width` wide. Rows a multiple of 4 KiB apart would
/// fall into the same few lines of the first-level cache; in f32 they are dense all the same, as
/// oneDNN's fast kernels want them.
constexpr std::int64_t activation_stride(std::int64_t width, DType dtype) {
  if (dtype == DType::f32) return width;
  const auto element = static_cast<std::int64_t>(size_bytes(dtype));
  return width * element % 4096 == 0 ? width + 64 / element : width;
}

/// Where a layer's small vectors (norm weights, biases) lie in its f32 vector block; -1: absent.
/// The layer schema says in which order.
struct VectorLayout {
  std::int64_t attention_norm_weight = -1;  ///< [hidden_size]
  std::int64_t attention_norm_bias = -1;    ///< [hidden_size]
  std::int64_t qkv_bias = -1;               ///< [qkv_size]
  std::int64_t out_bias = -1;               ///< [hidden_size]
  std::int64_t ffn_norm_weight = -1;        ///< [hidden_size]
  std::int64_t ffn_norm_bias = -1;          ///< [hidden_size]
  std::int64_t fc1_bias = -1;               ///< [ffn_size]
  std::int64_t fc2_bias = -1;               ///< [hidden_size]
  std::int64_t gate_bias = -1;              ///< [ffn_size], gated FFN only
  std::int64_t q_norm_weight = -1;          ///< [head_dim]; absent: heads are not normalised
  std::int64_t k_norm_weight = -1;          ///< [head_dim], likewise
  std::int64_t attention_sinks = -1;        ///< [num_heads], logits; absent: there are none
  std::int64_t router_bias = -1;            ///< [num_experts], added to the router's logits
  std::int64_t router_correction = -1;      ///< [num_experts], layers with experts; absent: none
  std::int64_t num_elements = 0;

  static constexpr const float* at(const float* block, std::int64_t offset) {
    return offset < 0 ? nullptr : block + offset;
  }
};

}  // namespace sluice
