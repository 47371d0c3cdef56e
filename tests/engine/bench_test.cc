#include "engine/measure/bench.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/measure/bench_report.h"

namespace sluice {
namespace {

TEST(BenchIterationsTest, WholePromptsShareAnIterationOfAtMost2048Rows) {
  const auto iterations =
      bench_iterations({.phase = Phase::prefill, .tokens = 900, .batch = 3, .depth = 7});
  ASSERT_EQ(iterations.size(), 2U);  // 900 + 900 rows, then 900
  ASSERT_EQ(iterations[0].size(), 2U);
  EXPECT_EQ(iterations[0][1].sequence, 1);
  EXPECT_EQ(iterations[0][1].context, 7);
  EXPECT_EQ(iterations[0][1].rows, 900);
  EXPECT_TRUE(iterations[0][1].draws);
  EXPECT_EQ(iterations[1].size(), 1U);
}

TEST(BenchIterationsTest, BesideAnAcceleratorAllPromptsShareOne) {
  const auto iterations = bench_iterations(
      {.phase = Phase::prefill, .tokens = 3000, .batch = 3, .rows_at_once = 1 << 20});
  ASSERT_EQ(iterations.size(), 2U);
  ASSERT_EQ(iterations[0].size(), 3U);
  EXPECT_EQ(iterations[0][2].rows, 2048);
  ASSERT_EQ(iterations[1].size(), 3U);
  EXPECT_EQ(iterations[1][2].sequence, 2);
  EXPECT_EQ(iterations[1][2].context, 2048);
  EXPECT_TRUE(iterations[1][2].draws);
}

TEST(BenchIterationsTest, LongPromptsAreCutIntoChunks) {
  const auto iterations = bench_iterations({.phase = Phase::prefill, .tokens = 3000, .batch = 1});
  ASSERT_EQ(iterations.size(), 2U);
  EXPECT_EQ(iterations[0][0].rows, 2048);
  EXPECT_FALSE(iterations[0][0].draws);
  EXPECT_EQ(iterations[1][0].context, 2048);
  EXPECT_EQ(iterations[1][0].rows, 952);
  EXPECT_TRUE(iterations[1][0].draws);
}

TEST(BenchIterationsTest, DecodeAddsARowASequenceAndIteration) {
  const auto iterations =
      bench_iterations({.phase = Phase::decode, .tokens = 3, .batch = 2, .depth = 100});
  ASSERT_EQ(iterations.size(), 3U);
  ASSERT_EQ(iterations[2].size(), 2U);
  EXPECT_EQ(iterations[2][1].sequence, 1);
  EXPECT_EQ(iterations[2][1].context, 102);
}

TEST(BenchSummaryTest, ShareIsTheLimitOverTheTime) {
  BenchResult result;
  result.test = {.phase = Phase::decode, .tokens = 4, .batch = 2};
  // At 100 bytes/s and 200 FLOP/s: 0.25 s of reading and 0.75 s of arithmetic each.
  result.work.assign(4, {{"fc1", 25, 10}, {"lm_head", 5, 150}});
  const MachineRates rates = {.read_bandwidth_bytes_per_s = 100, .gemm_flop_per_s = 200};
  // At half the bandwidth, 0.5 s and 0.75 s.
  const MachineRates slow = {.read_bandwidth_bytes_per_s = 50, .gemm_flop_per_s = 200};
  result.samples = {{{{0, 4, 8, 7, rates}}},
                    {{{0, 2, 2, 1.8, slow}, {2, 4, 3, 2.8, rates}}},
                    {{{0, 4, 16, 8, rates}}}};
  const BenchSummary summary = summarise(result);
  EXPECT_EQ(summary.tokens_per_s, (std::vector<double>{1, 1.6, 0.5}));
  EXPECT_EQ(summary.limit_share, (std::vector<double>{0.5, 0.9, 0.25}));
  EXPECT_EQ(summary.bound, Bound::compute);
  EXPECT_DOUBLE_EQ(summary.overhead_us_per_iteration, 250000);  // of 0.25, 0.1 and 2 s
}

TEST(StatisticsTest, MatchHandComputation) {
  const MeanDeviation all = mean_deviation({2, 4, 9});
  EXPECT_DOUBLE_EQ(all.mean, 5);
  EXPECT_DOUBLE_EQ(all.deviation, std::sqrt(13.0));  // (9 + 1 + 16) / 2
  EXPECT_EQ(mean_deviation({3}).deviation, 0);
}

TEST(FormatTest, TablesAlignAndQuote) {
  const std::vector<std::vector<std::string>> rows = {{"name", "n"}, {"a ± b", "10"}, {"c", "9"}};
  EXPECT_EQ(format_table(rows), "name    n\na ± b  10\nc       9\n");
  EXPECT_EQ(format_markdown(rows),
            "| name  |  n |\n|-------|---:|\n| a ± b | 10 |\n| c     |  9 |\n");
  EXPECT_EQ(format_csv({{"a,b", "say \"x\""}, {"1", "2"}}), "\"a,b\",\"say \"\"x\"\"\"\n1,2\n");
}

}  // namespace
}  // namespace sluice
