#pragma once

#include <cstddef>
#include <cstdint>

#include "base/architecture.h"
#include "base/dtype.h"

namespace sluice {

/// What happens to a product y before it is stored.
enum class Epilogue : std::uint8_t {
  store,       ///< y
  accumulate,  ///< destination + y (the residual), f32 destinations only
  relu,
  gelu,       ///< with erf
  gelu_tanh,  ///< with tanh
  silu,
  multiply,          ///< y * operand
  clamped_gate,      ///< of Activation::clamped_swiglu: c * sigmoid(1.702 c), c = min(y, limit)
  multiply_clamped,  ///< its other half: (clamp(y, -limit, limit) + 1) * operand
};

constexpr Epilogue epilogue_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return Epilogue::relu;
    case Activation::gelu:
      return Epilogue::gelu;
    case Activation::gelu_tanh:
      return Epilogue::gelu_tanh;
    case Activation::silu:
      return Epilogue::silu;
    case Activation::clamped_swiglu:
      return Epilogue::clamped_gate;
  }
  return Epilogue::store;
}

/// What a gated FFN does to the up half, where the activation of its gates is the operand.
constexpr Epilogue up_epilogue_of(Epilogue activation) {
  return activation == Epilogue::clamped_gate ? Epilogue::multiply_clamped : Epilogue::multiply;
}

}  // namespace sluice

/// Vector loops (Google Highway), compiled for every instruction set and chosen at run time. A
/// row's result does not depend on the other rows.
namespace sluice::simd {

/// Name of the vector instruction set in use, e.g. "AVX3".
const char* target_name();

/// out[i] = norm(x)[i] * weight[i] + bias[i], stored as `dtype` (f32 or bf16). Statistics in f32.
/// layer_norm: (x - mean) / sqrt(var + eps); rms_norm: x / sqrt(mean(x^2) + eps). Null weight: 1,
/// null bias: 0. `out` may be `x` when dtype is f32.
void norm_row(NormKind kind, const float* x, std::int64_t n, const float* weight, const float* bias,
              float eps, DType dtype, void* out);

/// f32 to `dtype` (f32 or bf16), rounded to nearest even.
void store_row(const float* x, std::int64_t n, DType dtype, void* out);
/// `dtype` (f32, bf16 or f16) to f32. `x` may be unaligned.
void load_row(const void* x, std::int64_t n, DType dtype, float* out);

/// Rotates one head in place, the halves as pairs (Hugging Face's rotate_half): for i < head_dim /
/// 2 x[i] = x[i] cos[i] - x[i + h] sin[i], x[i + h] = x[i + h] cos[i] + x[i] sin[i] with h =
/// head_dim / 2.
void rope_head(float* x, const float* cos, const float* sin, std::int64_t head_dim);

/// First index whose value is NaN or infinite, or -1.
std::int64_t find_not_finite(const void* x, std::int64_t n, DType dtype);

/// Index of the first largest value of x [n], or -1 when there is none or some value is NaN or
/// infinite.
std::int64_t find_largest(const float* x, std::int64_t n);

/// A finished product [rows, columns] on its way into a wider matrix.
struct Tile {
  Epilogue epilogue = Epilogue::store;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const float* tile = nullptr;     ///< [rows, columns]
  std::int64_t tile_stride = 0;    ///< elements between rows of tile and operand; 0: columns
  const float* bias = nullptr;     ///< [columns], or null
  const float* operand = nullptr;  ///< [rows, columns]; for multiply and multiply_clamped
  float limit = 0;                 ///< for clamped_gate and multiply_clamped
  void* dst = nullptr;             ///< may be `tile`
  std::int64_t dst_stride = 0;     ///< elements between rows of dst
  DType dst_dtype = DType::f32;    ///< f32 or bf16
};
/// dst = epilogue(tile + bias)
void finish_tile(const Tile& tile);

}  // namespace sluice::simd
