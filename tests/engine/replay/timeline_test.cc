#include "engine/replay/timeline.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

ReplayTimeline timeline() {
  return {.pools = {{"hbm", 100}},
          .resources = {"gpu"},
          .samples = {{0, 1, 0, 0, {0}, {0}}, {1, 0, 2, 1, {50}, {1}}, {4, 0, 0, 0, {0}, {2.5}}},
          .end_s = 8};
}

TEST(ReplayTimelineTest, LevelsAreMeansOverTime) {
  // 1 for a second, 3 for three, 0 for four.
  const TimeCurve expected = {{1, 2}, {3, 3}, {5, 0}, {7, 0}};
  EXPECT_EQ(mean_levels(timeline(), {1, 3, 0}, 4), expected);
  EXPECT_EQ(mean_levels(timeline(), {1, 3, 0}, 1), (TimeCurve{{4, 10.0 / 8}}));
}

TEST(ReplayTimelineTest, RatesAreWhatASumGrows) {
  // 1 in the first second, 1.5 in the next three, nothing then.
  const TimeCurve expected = {{1, 0.75}, {3, 0.5}, {5, 0}, {7, 0}};
  EXPECT_EQ(mean_rates(timeline(), {0, 1, 2.5}, 4), expected);
}

TEST(ReplayTimelineTest, SamplesThatTakeNoTimeAreAllowed) {
  ReplayTimeline sudden = timeline();
  sudden.samples[1].time_s = 0;
  EXPECT_EQ(mean_levels(sudden, {1, 3, 0}, 2), (TimeCurve{{2, 3}, {6, 0}}));
  EXPECT_TRUE(mean_levels({}, {}, 2).empty());
  sudden.samples.resize(1);
  sudden.end_s = 0;
  EXPECT_TRUE(mean_levels(sudden, {1}, 2).empty());
  EXPECT_TRUE(mean_rates(sudden, {1}, 2).empty());
}

TEST(ReplayTimelineTest, CountsAllThatAreInTheSystem) {
  const auto counts = system_counts(timeline());
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_EQ(counts[1].time_s, 1);
  EXPECT_EQ(counts[1].in_system, 2);
}

}  // namespace
}  // namespace sluice
