#include "base/median.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(MedianTest, IsTheMiddleOne) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
}

TEST(MedianTest, OfEqualWeightsItIsTheSame) {
  EXPECT_EQ(weighted_median({{3, 7}}), 3);
  EXPECT_EQ(weighted_median({{9, 2}, {1, 2}, {4, 2}}), 4);
  EXPECT_EQ(weighted_median({{9}, {1}, {4}, {2}}), 3);
}

TEST(MedianTest, WeightsCountAsSoManyValues) {
  EXPECT_EQ(weighted_median({{1, 1}, {2, 1}, {9, 3}}), 9);
  EXPECT_EQ(weighted_median({{1, 3}, {2, 1}, {9, 1}}), 1);
  EXPECT_EQ(weighted_median({{1, 2}, {2, 1}, {9, 2}}), 2);
  EXPECT_EQ(weighted_median({{1, 2}, {2, 1}, {9, 3}}), 5.5);
}

}  // namespace
}  // namespace sluice
