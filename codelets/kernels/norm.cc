#include "codelets/kernels/norm.h"

#include <cmath>

#include "codelets/kernels/simd.h"

namespace sluice {

void block_input(ThreadPool& pool, const DecoderShape& shape, const NormVectors& norm,
                 const float* x, std::int64_t rows, std::byte* out) {
  const std::int64_t hidden = shape.hidden_size;
  const std::int64_t stride = activation_stride(hidden, shape.dtype);
  pool.run(rows, [&](std::int64_t r) {
    std::byte* to = out + static_cast<std::size_t>(r * stride) * size_bytes(shape.dtype);
    if (shape.norm_place == NormPlace::pre) {
      simd::norm_row(shape.norm, x + r * hidden, hidden, norm.weight, norm.bias, shape.norm_eps,
                     shape.dtype, to);
    } else {
      simd::store_row(x + r * hidden, hidden, shape.dtype, to);
    }
  });
}

void block_output(ThreadPool& pool, const DecoderShape& shape, const NormVectors& norm, float* x,
                  std::int64_t rows) {
  if (shape.norm_place != NormPlace::post) return;
  const std::int64_t hidden = shape.hidden_size;
  pool.run(rows, [&](std::int64_t r) {
    simd::norm_row(shape.norm, x + r * hidden, hidden, norm.weight, norm.bias, shape.norm_eps,
                   DType::f32, x + r * hidden);
  });
}

void norm_reference(const DecoderShape& shape, const NormVectors& norm, const double* x,
                    std::int64_t n, double* out) {
  double mean = 0;
  if (shape.norm == NormKind::layer_norm) {
    for (std::int64_t i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
  }
  double variance = 0;
  for (std::int64_t i = 0; i < n; ++i)
    variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
  const double factor = 1.0 / std::sqrt(variance + static_cast<double>(shape.norm_eps));
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = (x[i] - mean) * factor * (norm.weight != nullptr ? norm.weight[i] : 1.0) +
             (norm.bias != nullptr ? norm.bias[i] : 0.0);
  }
}

}  // namespace sluice
