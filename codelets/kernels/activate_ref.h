#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/architecture.h"

namespace sluice {

/// In double precision.
inline double activate_reference(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::clamped_swiglu:
      break;  // of a gated FFN only
  }
  return x;
}

/// The same of a gated FFN; `limit` is clamped_swiglu's.
inline double gated_reference(Activation activation, double limit, double gate, double up) {
  if (activation != Activation::clamped_swiglu) return up * activate_reference(activation, gate);
  const double clamped = std::min(gate, limit);
  return (std::clamp(up, -limit, limit) + 1) * clamped / (1 + std::exp(-1.702 * clamped));
}

}  // namespace sluice
