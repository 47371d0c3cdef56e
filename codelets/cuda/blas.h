#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"

namespace sluice::cuda {

/// What a product becomes on its way out.
enum class GemmEpilogue : std::uint8_t {
  store,       ///< y = x W^T
  accumulate,  ///< y = y + x W^T
  relu,
};

/// y = epilogue(x W^T + bias). All strides are multiples of 16 bytes, and so are the addresses.
struct Gemm {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType dtype = DType::bf16;     ///< of x and W: f32, bf16, or f16
  const void* x = nullptr;       ///< [rows, in]
  std::int64_t x_stride = 0;     ///< elements between rows
  const void* weight = nullptr;  ///< [out, in]
  std::int64_t weight_stride = 0;
  DType y_dtype = DType::f32;  ///< f32, or x's
  void* y = nullptr;           ///< [rows, out]
  std::int64_t y_stride = 0;
  /// [out], or null. Only where y is f32, x is not, and the epilogue is store or accumulate.
  const float* bias = nullptr;
  GemmEpilogue epilogue = GemmEpilogue::store;
};

/// Matrix products by cuBLASLt, for one worker. Sums are f32, products of f32 are not rounded to
/// TF32. The way to compute a shape is asked for once and kept.
class Blas {
 public:
  /// What cuBLASLt asks for on GPUs since Hopper.
  static constexpr std::size_t default_workspace_bytes = std::size_t{32} << 20;

  /// `workspace`: device memory, aligned to 256 bytes, that outlives the object; one product at a
  /// time uses it. Throws Error when cuBLASLt cannot start.
  Blas(void* workspace, std::size_t workspace_bytes);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  /// Returns whether the bias, if any, was added: what cuBLASLt cannot do the caller does. Throws
  /// Error with the shape when it has no way to compute the product, or refuses.
  bool multiply(const Gemm& gemm, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cuda
