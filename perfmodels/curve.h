#pragma once

#include <vector>

namespace sluice {

/// A rate that depends on how much there is to do: y over x, both above 0. In one of two forms:
///   points       straight lines between them in log-log, the end values held beyond the ends
///   saturating   peak x / (x + half_at): half of `peak` at x = half_at
class Curve {
 public:
  struct Point {
    double x = 0;
    double y = 0;
  };

  /// The same y everywhere. Throws Error unless 0 < y < infinity.
  static Curve constant(double y);
  /// Throws Error unless both are positive and finite.
  static Curve saturating(double peak, double half_at);
  /// At least one point, x ascending; all x and y positive and finite. Throws Error otherwise.
  explicit Curve(const std::vector<Point>& points);

  /// Never 0, infinite or NaN, whatever x is. The saturating form takes x below 1 as 1: what it is
  /// over are counts (rows, bytes).
  double at(double x) const;
  /// The same with all y times `factor`: in another unit. Throws Error unless they stay positive
  /// and finite.
  Curve scaled(double factor) const;

 private:
  std::vector<double> x_;
  std::vector<double> y_;  ///< of the saturating form: its peak
  double half_at_ = 0;     ///< 0: points
};

/// A rate over two things: a grid of values, bilinear in log-log, the border held beyond it.
class Surface {
 public:
  static Surface constant(double value);
  /// `values[i][j]` belongs to x[i], y[j]. Axes ascend; everything is positive and finite, and the
  /// grid is complete. Throws Error otherwise.
  Surface(std::vector<double> x, std::vector<double> y, std::vector<std::vector<double>> values);

  /// Never 0, infinite or NaN, whatever x and y are.
  double at(double x, double y) const;
  /// The same with all values times `factor`. Throws Error unless they stay positive and finite.
  Surface scaled(double factor) const;

 private:
  std::vector<double> x_;
  std::vector<double> y_;
  std::vector<std::vector<double>> values_;
};

}  // namespace sluice
