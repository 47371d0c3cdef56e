#include "perfmodels/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(CurveTest, IsStraightInLogLogAndHeldBeyondItsEnds) {
  const Curve curve({{1, 2}, {100, 20}, {400, 10}});
  EXPECT_DOUBLE_EQ(curve.at(1), 2);
  EXPECT_DOUBLE_EQ(curve.at(10), 2 * std::sqrt(10.0));  // half of the way to 100, a tenth to 20
  EXPECT_DOUBLE_EQ(curve.at(100), 20);
  EXPECT_DOUBLE_EQ(curve.at(200), 20 / std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(curve.at(0.5), 2);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 10);
}

TEST(CurveTest, SaturatesTowardsItsPeak) {
  const Curve curve = Curve::saturating(18, 20);
  EXPECT_DOUBLE_EQ(curve.at(20), 9);
  EXPECT_DOUBLE_EQ(curve.at(1), 18.0 / 21);
  EXPECT_DOUBLE_EQ(curve.at(180), 16.2);
  EXPECT_DOUBLE_EQ(curve.at(infinity), 18);
}

TEST(CurveTest, OfOneValueIsConstant) {
  const Curve curve = Curve::constant(7);
  for (const double x : {1e-300, 1.0, 3.0, 1e300}) EXPECT_EQ(curve.at(x), 7);
}

TEST(CurveTest, IsScaledToAnotherUnit) {
  const Curve curve = Curve({{1, 2}, {100, 20}}).scaled(1e9);
  EXPECT_DOUBLE_EQ(curve.at(1), 2e9);
  EXPECT_DOUBLE_EQ(curve.at(10), 2e9 * std::sqrt(10.0));
  EXPECT_DOUBLE_EQ(Curve::saturating(18, 20).scaled(1e-6).at(20), 9e-6);
  EXPECT_THROW(curve.scaled(0), Error);
  EXPECT_THROW(curve.scaled(infinity), Error);
}

TEST(CurveTest, NeverGivesZeroOrNan) {
  const double least = std::numeric_limits<double>::denorm_min();
  const double most = std::numeric_limits<double>::max();
  for (const Curve& curve : {Curve({{least, least}, {1, most}, {most, least}}),
                             Curve::saturating(least, most), Curve::constant(least)}) {
    for (const double x : {nan, -infinity, -1.0, 0.0, least, 0.5, 2.0, most, infinity}) {
      EXPECT_GT(curve.at(x), 0) << x;
      EXPECT_TRUE(std::isfinite(curve.at(x))) << x;
    }
  }
}

TEST(CurveTest, RefusesWhatIsNoRate) {
  EXPECT_THROW(Curve({}), Error);
  EXPECT_THROW(Curve({{0, 1}}), Error);
  EXPECT_THROW(Curve({{1, 0}}), Error);
  EXPECT_THROW(Curve({{1, -2}}), Error);
  EXPECT_THROW(Curve({{1, nan}}), Error);
  EXPECT_THROW(Curve({{1, infinity}}), Error);
  EXPECT_THROW(Curve({{1, 2}, {1, 3}}), Error);
  EXPECT_THROW(Curve({{2, 2}, {1, 3}}), Error);
  EXPECT_THROW(Curve::constant(0), Error);
  EXPECT_THROW(Curve::saturating(1, 0), Error);
  EXPECT_THROW(Curve::saturating(-1, 1), Error);
}

TEST(SurfaceTest, IsBilinearInLogLogAndHeldBeyondItsBorder) {
  const Surface surface({1, 100}, {1, 10000}, {{1, 100}, {4, 400}});
  EXPECT_DOUBLE_EQ(surface.at(1, 1), 1);
  EXPECT_DOUBLE_EQ(surface.at(100, 10000), 400);
  EXPECT_DOUBLE_EQ(surface.at(1, 100), 10);
  EXPECT_DOUBLE_EQ(surface.at(10, 1), 2);
  EXPECT_DOUBLE_EQ(surface.at(10, 100), 20);
  EXPECT_DOUBLE_EQ(surface.at(0, 1e9), 100);
  EXPECT_DOUBLE_EQ(surface.at(nan, nan), 1);
  EXPECT_DOUBLE_EQ(Surface::constant(3).at(5, 5), 3);
}

TEST(SurfaceTest, RefusesAnIncompleteGrid) {
  EXPECT_THROW(Surface({}, {1}, {}), Error);
  EXPECT_THROW(Surface({1, 2}, {1}, {{1}}), Error);
  EXPECT_THROW(Surface({1}, {1, 2}, {{1}}), Error);
  EXPECT_THROW(Surface({1}, {1}, {{0}}), Error);
  EXPECT_THROW(Surface({2, 1}, {1}, {{1}, {1}}), Error);
}

}  // namespace
}  // namespace sluice
