#pragma once

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
  }
  return x;
}

}  // namespace sluice
