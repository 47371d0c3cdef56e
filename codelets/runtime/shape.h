#pragma once

#include <cstddef>
#include <cstdint>

#include "base/architecture.h"
#include "base/dtype.h"
#include "codelets/runtime/batch.h"

namespace sluice {

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
  bool gated_ffn = true;
  bool rope = true;
  DType dtype = DType::bf16;  ///< of GEMM operands and KV; the residual stream is always f32

  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
  std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  std::int64_t group_size() const { return num_heads / num_kv_heads; }

  /// One page of a slab: K [num_kv_heads, page_tokens, head_dim], then V likewise.
  std::int64_t page_elements() const { return 2 * num_kv_heads * page_tokens * head_dim; }
  std::size_t page_bytes() const {
    return static_cast<std::size_t>(page_elements()) * size_bytes(dtype);
  }

  bool operator==(const DecoderShape&) const = default;
};

/// Where a layer's small vectors (norm weights, biases) lie in its f32 vector block; -1: absent.
/// In order: attention norm w, b; QKV bias; output bias; FFN norm w, b; FC1 bias; FC2 bias; gate
/// bias.
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
  std::int64_t num_elements = 0;

  static const float* at(const float* block, std::int64_t offset) {
    return offset < 0 ? nullptr : block + offset;
  }
};

}  // namespace sluice
