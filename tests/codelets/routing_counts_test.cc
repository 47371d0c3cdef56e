#include <gtest/gtest.h>

#include "codelets/runtime/routing_recorder.h"

namespace sluice {
namespace {

TEST(RoutingCountsTest, ByHand) {
  const MixtureShape mixture{.num_experts = 4, .experts_per_token = 2};
  RoutingCounts counts;
  EXPECT_TRUE(counts.empty());
  // Two rows of layer 3: experts 0, 2 and 2, 3.
  const std::vector<ExpertChoice> two = {{0, 1}, {2, 1}, {2, 1}, {3, 1}};
  counts.add(3, mixture, two);
  // One row of layer 5, and one more of layer 3.
  const std::vector<ExpertChoice> one = {{1, 1}, {3, 1}};
  counts.add(5, mixture, one);
  RoutingCounts more;
  more.add(3, mixture, one);
  counts += more;
  EXPECT_EQ(counts.rows(), 3);
  EXPECT_EQ(counts.touched(), 3 + 2 + 2);
  EXPECT_DOUBLE_EQ(counts.mean_touched(), 7.0 / 3);
  const RecordedRouting recorded = counts.recorded("m", 7);
  EXPECT_EQ(recorded.model, "m");
  EXPECT_EQ(recorded.rows, 3);
  EXPECT_EQ(recorded.layers, (std::vector<std::vector<std::int64_t>>{
                                 {}, {}, {}, {1, 1, 2, 2}, {}, {0, 1, 0, 1}, {}}));
  ASSERT_EQ(recorded.touched_by_rows.size(), 2U);
  EXPECT_EQ(recorded.touched_by_rows[0].rows, 1);
  EXPECT_DOUBLE_EQ(recorded.touched_by_rows[0].mean, 2);
  EXPECT_EQ(recorded.touched_by_rows[1].rows, 2);
  EXPECT_DOUBLE_EQ(recorded.touched_by_rows[1].mean, 3);
}

}  // namespace
}  // namespace sluice
