#include "engine/replay/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

/// Requests that come every half second; those numbered 4 and 15 are rejected.
std::vector<FinishedRequest> sample() {
  std::vector<FinishedRequest> requests;
  for (int i = 0; i < 23; ++i) {
    FinishedRequest request;
    request.arrival_s = 0.5 * i;
    request.admitted_s = request.arrival_s + 0.125 * (i % 5);
    request.first_token_s = request.admitted_s + 0.25 + 0.0625 * (i % 3);
    request.output_tokens = 1 + (i * 7) % 11;
    request.last_token_s = request.first_token_s +
                           0.03125 * static_cast<double>((request.output_tokens - 1) * (1 + i % 4));
    request.rejected = i == 4 || i == 15;
    requests.push_back(request);
  }
  return requests;
}

void expect_near(const std::optional<Distribution>& found, const Distribution& expected) {
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->mean, expected.mean);
  EXPECT_DOUBLE_EQ(found->p50, expected.p50);
  EXPECT_DOUBLE_EQ(found->p90, expected.p90);
  EXPECT_DOUBLE_EQ(found->p99, expected.p99);
}

TEST(ReplayStatisticsTest, PercentilesAreLinearBetweenValues) {
  const std::vector<double> values = {40, 10, 30, 20};
  EXPECT_EQ(percentile(values, 0), 10);
  EXPECT_EQ(percentile(values, 0.5), 25);            // place 1.5
  EXPECT_DOUBLE_EQ(percentile(values, 0.9), 37);     // place 2.7
  EXPECT_DOUBLE_EQ(percentile(values, 0.99), 39.7);  // place 2.97
  EXPECT_EQ(percentile(values, 1), 40);
  EXPECT_EQ(percentile({7}, 0.9), 7);
  EXPECT_FALSE(distribution({}));
}

/// Three requests that end within a millisecond have no rate of thousands a second.
TEST(ReplayStatisticsTest, WhatEndsInOneIterationHasNoRate) {
  std::vector<FinishedRequest> requests;
  for (int i = 0; i < 3; ++i) {
    FinishedRequest& request = requests.emplace_back();
    request.first_token_s = 0.5;
    request.last_token_s = 0.8 + 1e-4 * i;
    request.output_tokens = 4;
  }
  EXPECT_FALSE(replay_statistics(requests, std::nullopt).requests_per_s);
  requests.back().last_token_s = 1.3;
  EXPECT_DOUBLE_EQ(replay_statistics(requests, std::nullopt).requests_per_s.value(), 2 / 0.5);
}

// Literals of numpy 2.4.6 for the same requests: numpy.mean, numpy.percentile.
TEST(ReplayStatisticsTest, MatchesNumpyInAnyOrder) {
  for (const bool reversed : {false, true}) {
    std::vector<FinishedRequest> requests = sample();
    if (reversed) std::reverse(requests.begin(), requests.end());
    const ReplayStatistics found =
        replay_statistics(requests, Slo{.ttft_s = 0.625, .tpot_s = 0.09375});
    EXPECT_EQ(found.requests, 23);
    EXPECT_EQ(found.completed, 21);
    EXPECT_EQ(found.rejected, 2);
    expect_near(
        found.per_token_latency_s,
        {.mean = 0.22472008689839573, .p50 = 0.16666666666666666, .p90 = 0.48125, .p99 = 0.5525});
    expect_near(found.ttft_s,
                {.mean = 0.5588235294117647, .p50 = 0.5625, .p90 = 0.775, .p99 = 0.865});
    expect_near(
        found.tpot_s,
        {.mean = 0.07083333333333333, .p50 = 0.0625, .p90 = 0.11249999999999999, .p99 = 0.125});
    expect_near(found.queue_s, {.mean = 0.2426470588235294, .p50 = 0.25, .p90 = 0.5, .p99 = 0.5});
    EXPECT_DOUBLE_EQ(found.requests_per_s.value(), 1.9393939393939394);
    EXPECT_DOUBLE_EQ(found.output_tokens_per_s.value(), 10.424242424242424);
    EXPECT_DOUBLE_EQ(found.slo_attainment.value(), 11.0 / 18);
  }
}

/// A request that comes at `arrival_s`, is served at once, and has a token each second.
FinishedRequest request(double arrival_s, double last_token_s, std::int64_t output_tokens) {
  return {.arrival_s = arrival_s,
          .admitted_s = arrival_s,
          .first_token_s = last_token_s - static_cast<double>(output_tokens - 1),
          .last_token_s = last_token_s,
          .output_tokens = output_tokens};
}

TEST(ReplayStatisticsTest, LatenciesLeaveOutTheFirstQuarterToCome) {
  // Of 8, the first 2: their latencies of 100 s a token count for nothing.
  std::vector<FinishedRequest> requests = {request(0, 200, 2), request(1, 201, 2)};
  for (int i = 2; i < 8; ++i) requests.push_back(request(i, i + 3, 2));
  const auto latency = replay_statistics(requests).per_token_latency_s;
  expect_near(latency, {.mean = 1.5, .p50 = 1.5, .p90 = 1.5, .p99 = 1.5});
  // Of 7, the first 1.
  requests.pop_back();
  EXPECT_DOUBLE_EQ(replay_statistics(requests).per_token_latency_s->mean, (5 * 1.5 + 100) / 6);
}

TEST(ReplayStatisticsTest, ThroughputIsThatOfTheMiddle) {
  // Ten completions at 1, 4, 9, ..., 100 s with 1, 2, ..., 10 tokens: from the 4th to the 8th.
  std::vector<FinishedRequest> requests;
  for (int i = 1; i <= 10; ++i) requests.push_back(request(0, i * i, i));
  const ReplayStatistics found = replay_statistics(requests);
  EXPECT_DOUBLE_EQ(found.requests_per_s.value(), 4.0 / (64 - 16));
  EXPECT_DOUBLE_EQ(found.output_tokens_per_s.value(), (5.0 + 6 + 7 + 8) / (64 - 16));
}

TEST(ReplayStatisticsTest, FewRequestsSayLittle) {
  const ReplayStatistics none = replay_statistics({}, Slo{.ttft_s = 1});
  EXPECT_EQ(none.requests, 0);
  EXPECT_FALSE(none.requests_per_s || none.per_token_latency_s || none.slo_attainment);
  const ReplayStatistics one = replay_statistics({request(0, 3, 1)});
  EXPECT_FALSE(one.requests_per_s || one.tpot_s);
  EXPECT_EQ(one.ttft_s->p99, 3);
  EXPECT_FALSE(one.slo_attainment);
  const ReplayStatistics together = replay_statistics({request(0, 3, 2), request(1, 3, 2)});
  EXPECT_FALSE(together.requests_per_s);
}

TEST(ReplayStatisticsTest, RejectedRequestsMissTheSlo) {
  std::vector<FinishedRequest> requests = {request(0, 1, 1), request(1, 2, 1), request(2, 3, 1),
                                           request(3, 4, 1)};
  requests[3].rejected = true;
  const ReplayStatistics found = replay_statistics(requests, Slo{.ttft_s = 1, .tpot_s = 0.5});
  EXPECT_DOUBLE_EQ(found.slo_attainment.value(), 2.0 / 3);  // the first quarter is left out
  requests[1].output_tokens = 2;
  requests[1].first_token_s = 1.25;  // TPOT 0.75
  const ReplayStatistics slow = replay_statistics(requests, Slo{.ttft_s = 1, .tpot_s = 0.5});
  EXPECT_DOUBLE_EQ(slow.slo_attainment.value(), 1.0 / 3);
  std::for_each(requests.begin(), requests.end(), [](auto& each) { each.rejected = true; });
  const ReplayStatistics all = replay_statistics(requests, Slo{.ttft_s = 1});
  EXPECT_EQ(all.slo_attainment, 0);
  EXPECT_EQ(all.rejected, 4);
  EXPECT_FALSE(all.ttft_s);
}

TEST(ReplayStatisticsTest, GoodputIsTheHighestRateThatKeepsTheSlo) {
  EXPECT_EQ(goodput_per_s({{1, 1}, {4, 0.5}, {3, 0.9}, {2, 0.95}}), 3);
  EXPECT_FALSE(goodput_per_s({{1, 0.89}}));
  EXPECT_FALSE(goodput_per_s({}));
}

// Three requests: 0 to 4 s, 1 to 3 s, 2 to 6 s. In the system: 1, 2, 3, 2, 1, 1.
const std::vector<FinishedRequest> three = {request(0, 4, 1), request(1, 3, 1), request(2, 6, 1)};

TEST(LittlesLawTest, HoldsExactlyWithTheEnginesCounts) {
  const std::vector<SystemCount> counts = {{-1, 0}, {0, 1}, {1, 2}, {2, 3}, {3, 2}, {4, 1}, {6, 0}};
  const auto law = littles_law(three, counts).value();
  EXPECT_EQ(law.window.from_s, 0);
  EXPECT_EQ(law.window.to_s, 6);
  EXPECT_DOUBLE_EQ(law.mean_in_system, 10.0 / 6);
  EXPECT_DOUBLE_EQ(law.arrivals_per_s, 0.5);
  EXPECT_DOUBLE_EQ(law.mean_time_s, 10.0 / 3);
  EXPECT_NEAR(law.relative_error, 0, 1e-15);
}

TEST(LittlesLawTest, SeesACountThatIsWrong) {
  // The third request is seen a second late: 9 request-seconds, not 10.
  const std::vector<SystemCount> counts = {{0, 1}, {1, 2}, {2, 2}, {3, 2}, {4, 1}};
  const auto law = littles_law(three, counts).value();
  EXPECT_DOUBLE_EQ(law.mean_in_system, 9.0 / 6);
  EXPECT_DOUBLE_EQ(law.relative_error, 1.0 / 9);
}

TEST(LittlesLawTest, AWindowHasEdges) {
  // 1 to 4 s: 2 + 3 + 2 request-seconds; two come in it and stay for 2 and 4 s.
  const auto law = littles_law(three, TimeWindow{1, 4}).value();
  EXPECT_DOUBLE_EQ(law.mean_in_system, 7.0 / 3);
  EXPECT_DOUBLE_EQ(law.arrivals_per_s, 2.0 / 3);
  EXPECT_DOUBLE_EQ(law.mean_time_s, 3);
  EXPECT_DOUBLE_EQ(law.relative_error, 1.0 / 7);
}

TEST(LittlesLawTest, MatchesNumpyInAWindow) {
  const auto law = littles_law(sample(), TimeWindow{3, 9}).value();
  EXPECT_DOUBLE_EQ(law.mean_in_system, 1.734375);
  EXPECT_DOUBLE_EQ(law.arrivals_per_s, 11.0 / 6);
  EXPECT_DOUBLE_EQ(law.mean_time_s, 0.9744318181818182);
  EXPECT_NEAR(law.relative_error, 0.030030030030029988, 1e-12);
}

TEST(LittlesLawTest, NothingCompletedIsNoLaw) {
  std::vector<FinishedRequest> rejected = three;
  for (FinishedRequest& each : rejected) each.rejected = true;
  EXPECT_FALSE(littles_law(rejected, TimeWindow{0, 6}));
  EXPECT_FALSE(littles_law(rejected, std::vector<SystemCount>{{0, 1}}));
  EXPECT_FALSE(littles_law(three, std::vector<SystemCount>{}));
  EXPECT_FALSE(littles_law(three, TimeWindow{3, 3}));
}

}  // namespace
}  // namespace sluice
