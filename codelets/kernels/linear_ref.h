#pragma once

#include <cstdint>

namespace sluice {

/// y = W x + bias in double precision; W [out, in] row-major, bias [out] or null.
inline void linear_reference(const double* x, const float* weight, const float* bias,
                             std::int64_t in, std::int64_t out, double* y) {
  for (std::int64_t o = 0; o < out; ++o) {
    double sum = bias != nullptr ? bias[o] : 0.0;
    for (std::int64_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[i];
    y[o] = sum;
  }
}

}  // namespace sluice
