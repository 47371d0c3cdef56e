#include "base/units.h"

#include <gtest/gtest.h>

#include "base/median.h"

namespace sluice {
namespace {

TEST(FormatBytesTest, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(512), "0.5 KiB");
  EXPECT_EQ(format_bytes(3ULL << 20), "3.0 MiB");
  EXPECT_EQ(format_bytes(5ULL << 30), "5.00 GiB");
}

TEST(FormatSecondsTest, ChoosesTheUnit) {
  EXPECT_EQ(format_seconds(1.234), "1.23 s");
  EXPECT_EQ(format_seconds(0.0456), "45.60 ms");
  EXPECT_EQ(format_seconds(7.89e-6), "7.9 us");
}

TEST(MedianTest, IsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({5, 1, 3, 4}), 3.5);
}

}  // namespace
}  // namespace sluice
