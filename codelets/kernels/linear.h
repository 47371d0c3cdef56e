#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "codelets/kernels/simd.h"
#include "codelets/weights/product.h"
#include "codelets/weights/weight.h"

namespace sluice {

/// Rows that one of several weights of a type multiplies, such as those that an expert was chosen
/// for.
struct WeightedRows {
  RowRange rows;
  const std::byte* weight = nullptr;  ///< packed
  const float* bias = nullptr;        ///< [out], or null
  const std::byte* gate = nullptr;    ///< of gated_linear(), likewise
  const float* gate_bias = nullptr;
};

/// One call of linear(): dst = epilogue(x W^T + bias).
struct LinearCall {
  Weight weight = {};
  DType dtype = DType::bf16;  ///< of x: f32 or bf16; a plain weight's own
  const void* x = nullptr;    ///< [rows, in]
  std::int64_t rows = 0;
  std::int64_t x_stride = 0;    ///< elements between rows of x; 0: in
  const float* bias = nullptr;  ///< [out], or null
  Epilogue epilogue = Epilogue::store;
  float limit = 0;      ///< see simd::Tile
  void* dst = nullptr;  ///< [rows, out]
  DType dst_dtype = DType::f32;
  std::int64_t dst_stride = 0;  ///< elements between rows of dst; 0: out
  /// Several weights of `weight`'s type, in place of its data and of the bias; in the order of
  /// their rows, none without any.
  std::span<const WeightedRows> groups = {};
};

/// A row's result is the same bits whatever the other rows, their number and the number of threads.
/// Throws Error when a library refuses.
void linear(ThreadPool& pool, const LinearCall& call);

/// The gated FFN's first half: dst = activation(x Wg^T + bg) * (x Wu^T + bu), both of one shape.
/// `activation` is one of relu, gelu, gelu_tanh, silu, and clamped_gate:
/// Activation::clamped_swiglu.
struct GatedLinearCall {
  Weight gate = {};
  Weight up = {};             ///< of the gate's shape
  DType dtype = DType::bf16;  ///< of x and dst; see LinearCall
  const void* x = nullptr;    ///< [rows, in]
  std::int64_t rows = 0;
  std::int64_t x_stride = 0;         ///< elements between rows of x; 0: in
  const float* gate_bias = nullptr;  ///< [out], or null
  const float* up_bias = nullptr;    ///< [out], or null
  Epilogue activation = Epilogue::silu;
  float limit = 0;                            ///< of clamped_gate
  void* dst = nullptr;                        ///< [rows, out]
  std::int64_t dst_stride = 0;                ///< elements between rows of dst; 0: out
  std::span<const WeightedRows> groups = {};  ///< see LinearCall
};
void gated_linear(ThreadPool& pool, const GatedLinearCall& call);

}  // namespace sluice
