#include "perfmodels/curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace sluice {
namespace {

void check_positive(double number, std::string_view what) {
  if (!(number > 0) || std::isinf(number))
    throw Error("{} of a curve is {}, expected a positive, finite number", what, number);
}

void check_axis(const std::vector<double>& axis) {
  if (axis.empty()) throw Error("a curve without points, expected at least one");
  for (const double x : axis) check_positive(x, "x");
  for (std::size_t i = 1; i < axis.size(); ++i) {
    if (axis[i] <= axis[i - 1])
      throw Error("x of a curve goes from {} to {}, expected ascending values", axis[i - 1],
                  axis[i]);
  }
}

/// Where x lies on an axis: between `below` and the next, `share` of the way in logarithms.
struct Position {
  std::size_t below = 0;
  std::size_t above = 0;
  double share = 0;
};

Position locate(const std::vector<double>& axis, double x) {
  if (!(x > axis.front())) return {};  // NaN, too
  const std::size_t last = axis.size() - 1;
  if (x >= axis.back()) return {last, last, 0};
  const auto above =
      static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
  const double from = std::log(axis[above - 1]);
  return {above - 1, above, (std::log(x) - from) / (std::log(axis[above]) - from)};
}

double between(double a, double b, double share) {
  if (share == 0 || a == b) return a;
  const double y = std::exp(std::log(a) + share * (std::log(b) - std::log(a)));
  return std::clamp(y, std::min(a, b), std::max(a, b));
}

}  // namespace

Curve Curve::constant(double y) { return Curve(std::vector<Point>{{1, y}}); }

Curve Curve::saturating(double peak, double half_at) {
  check_positive(half_at, "half_at");
  Curve curve = constant(peak);
  curve.half_at_ = half_at;
  return curve;
}

Curve::Curve(const std::vector<Point>& points) {
  for (const Point& point : points) {
    check_positive(point.y, "y");
    x_.push_back(point.x);
    y_.push_back(point.y);
  }
  check_axis(x_);
}

double Curve::at(double x) const {
  if (half_at_ > 0) {
    const double rate = y_.front() / (1 + half_at_ / std::max(1.0, x));
    return std::max(rate, std::numeric_limits<double>::min());
  }
  const Position position = locate(x_, x);
  return between(y_[position.below], y_[position.above], position.share);
}

Curve Curve::scaled(double factor) const {
  Curve result = *this;
  for (double& y : result.y_) {
    y *= factor;
    check_positive(y, "y");
  }
  return result;
}

Surface Surface::scaled(double factor) const {
  Surface result = *this;
  for (std::vector<double>& row : result.values_) {
    for (double& value : row) {
      value *= factor;
      check_positive(value, "value");
    }
  }
  return result;
}

Surface Surface::constant(double value) { return {{1}, {1}, {{value}}}; }

Surface::Surface(std::vector<double> x, std::vector<double> y,
                 std::vector<std::vector<double>> values)
    : x_(std::move(x)), y_(std::move(y)), values_(std::move(values)) {
  check_axis(x_);
  check_axis(y_);
  if (values_.size() != x_.size())
    throw Error("the number of rows of values is {}, expected {}, one for each x", values_.size(),
                x_.size());
  for (const std::vector<double>& row : values_) {
    if (row.size() != y_.size())
      throw Error("the number of values in a row is {}, expected {}, one for each y", row.size(),
                  y_.size());
    for (const double value : row) check_positive(value, "a value");
  }
}

double Surface::at(double x, double y) const {
  const Position row = locate(x_, x);
  const Position col = locate(y_, y);
  const auto along = [&](const std::vector<double>& values) {
    return between(values[col.below], values[col.above], col.share);
  };
  return between(along(values_[row.below]), along(values_[row.above]), row.share);
}

}  // namespace sluice
