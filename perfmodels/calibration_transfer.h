#pragma once

#include <span>

#include "perfmodels/calibration.h"

namespace sluice {

/// Seconds of one GEMM over the elements of its weight, at one number of rows: `fixed` and
/// `per_element`, both at least 0. Rows and type given, bytes and FLOP both go with elements, so
/// `1 / per_element` is the rate that large weights reach, and `fixed` is why small ones fall
/// short.
struct SizeLaw {
  struct Point {
    double elements = 0;
    double seconds = 0;
  };
  double fixed = 0;
  double per_element = 0;

  /// Least squares of the relative errors. `points` is not empty, all above 0.
  static SizeLaw fit(std::span<const Point> points);
  double at(double elements) const { return fixed + per_element * elements; }
};

/// Whether one model's measurements say something of another's: weights and KV of the same width,
/// no experts.
bool transferable(const ModelDimensions& from, const ModelDimensions& to);

/// How far apart two models' layers are: the sum of |ln(a / b)| over the weights of sublayers 1, 4,
/// 5 and 6, K and V of a token, and the query heads that share a KV head. 0: same_layers(), but for
/// vocabulary and window.
double layer_distance(const ModelDimensions& a, const ModelDimensions& b);

/// A calibration of `model`, on the same machine, that `measured` predicts (ours): rates are
/// carried over, not times (docs/design/cost-model.md#rates-for-another-model).
///   1, 4, 5, 6, LM head   times SizeLaw(other size) / SizeLaw(own size), fitted at each row count
///   attention             reading grows with bytes of K and V, the rest with FLOP
///   storing KV            grows with bytes of K and V
/// Throws Error when not transferable(), and when a sublayer or phase was not measured.
Calibration transferred(const Calibration& measured, const ModelDimensions& model);

}  // namespace sluice
