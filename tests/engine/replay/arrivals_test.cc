#include "engine/replay/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "base/error.h"
#include "engine/replay/draws.h"

namespace sluice {
namespace {

/// Bits that are written down.
class Listed {
 public:
  explicit Listed(std::vector<std::uint64_t> bits) : bits_(std::move(bits)) {}
  std::uint64_t operator()() { return bits_.at(next_++); }
  std::size_t taken() const { return next_; }

 private:
  std::vector<std::uint64_t> bits_;
  std::size_t next_ = 0;
};

constexpr std::uint64_t quarter = std::uint64_t{1} << 62;

TEST(DrawsTest, ExponentialTakesTheFirstRunOfOddLength) {
  Listed one({2 * quarter, 3 * quarter});  // the run 0.5
  EXPECT_EQ(draw_exponential(one), 0.5);
  Listed three({3 * quarter, 2 * quarter, quarter, quarter});  // 0.75, 0.5, 0.25
  EXPECT_EQ(draw_exponential(three), 0.75);
  EXPECT_EQ(three.taken(), 4U);
  Listed third({3 * quarter, 2 * quarter, 2 * quarter,  // 0.75, 0.5: even
                2 * quarter, 0, 0,                      // 0.5, 0: even
                quarter, quarter});                     // 0.25
  EXPECT_EQ(draw_exponential(third), 2.25);
  EXPECT_EQ(third.taken(), 8U);
}

TEST(DrawsTest, WholeNumbersLeaveNoneMoreLikely) {
  // 2^64 = 3 x 6148914691236517205 + 1: the last of all bits belongs to no whole round.
  Listed last({~std::uint64_t{0}, ~std::uint64_t{0} - 1});
  EXPECT_EQ(draw_whole(last, 10, 12), 12);
  EXPECT_EQ(last.taken(), 2U);
  Listed power({~std::uint64_t{0}});  // 4 divides 2^64: every bit counts
  EXPECT_EQ(draw_whole(power, -1, 2), 2);
  Listed only({17});
  EXPECT_EQ(draw_whole(only, 5, 5), 5);
}

/// Kolmogorov and Smirnov's distance times the root of the count, for mean 1.
double exponential_distance(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = -std::expm1(-values[i]);
    most = std::max({most, static_cast<double>(i + 1) / count - expected,
                     expected - static_cast<double>(i) / count});
  }
  return most * std::sqrt(count);
}

/// Massart: the distance exceeds x with a probability of at most 2 exp(-2 x^2), here 1 in 10^6.
const double most_distance = std::sqrt(std::log(2e6) / 2);

std::vector<double> gaps(const std::vector<TracedRequest>& requests) {
  std::vector<double> all;
  for (std::size_t i = 1; i < requests.size(); ++i)
    all.push_back(requests[i].arrival_s - requests[i - 1].arrival_s);
  return all;
}

constexpr Arrivals poisson(double rate_per_s) {
  return {.kind = ArrivalKind::poisson, .rate_per_s = rate_per_s};
}

TEST(ArrivalsTest, PoissonGapsAreExponentialAndIndependent) {
  constexpr std::int64_t count = 400'001;
  for (const std::uint64_t seed : {0, 1, 12345}) {
    auto drawn = gaps(replayed_requests(UniformLengths{10, 10}, poisson(8), count, seed));
    for (double& gap : drawn) gap *= 8;
    EXPECT_LT(exponential_distance(drawn), most_distance);
    // The mean's deviation is 1 / sqrt(n), and so is that of the correlation of neighbours.
    const double deviation = 1 / std::sqrt(static_cast<double>(drawn.size()));
    double sum = 0;
    double products = 0;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      sum += drawn[i];
      if (i > 0) products += (drawn[i] - 1) * (drawn[i - 1] - 1);
    }
    EXPECT_NEAR(sum / static_cast<double>(drawn.size()), 1, 5 * deviation);
    EXPECT_NEAR(products / static_cast<double>(drawn.size()), 0, 5 * deviation);
  }
}

TEST(ArrivalsTest, TheDistanceSeesAMeanThatIsOnePercentOff) {
  std::mt19937_64 bits(3);
  std::vector<double> values(400'000);
  for (double& value : values) value = 1.01 * draw_exponential(bits);
  EXPECT_GT(exponential_distance(values), most_distance / 2);
  for (double& value : values) value *= 1.01;
  EXPECT_GT(exponential_distance(values), most_distance);
}

// By a Mersenne Twister of 64 bits in Python, written after Nishimura's paper: its 10,000th number
// of seed 5489 is the C++ standard's.
TEST(ArrivalsTest, ASeedGivesTheSameEverywhere) {
  const auto requests = replayed_requests(UniformLengths{1000, 100}, poisson(4), 6, 42);
  const std::vector<double> times = {0,
                                     0.05617632130915079,
                                     0.11072540700258568,
                                     0.18224533666932533,
                                     0.7329589481086354,
                                     0.9998004965322593};
  const std::vector<std::pair<std::int64_t, std::int64_t>> lengths = {
      {981, 107}, {937, 108}, {1019, 110}, {961, 90}, {1003, 100}, {922, 90}};
  ASSERT_EQ(requests.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(requests[i].arrival_s, times[i]);
    EXPECT_EQ(requests[i].input_tokens, lengths[i].first);
    EXPECT_EQ(requests[i].output_tokens, lengths[i].second);
  }
  // The first gap by hand: the bits 0x3986491b545e35ee and then more of them, over 2^64, over 4.
  std::mt19937_64 bits(~std::uint64_t{42});
  EXPECT_EQ(bits(), 0x3986491b545e35eeU);
  EXPECT_GT(bits(), 0x3986491b545e35eeU);
  EXPECT_EQ(requests[1].arrival_s, static_cast<double>(0x3986491b545e35eeU >> 11) * 0x1p-55);
}

TEST(ArrivalsTest, ARateOnlyStretchesTime) {
  const auto slow = replayed_requests(UniformLengths{50, 20}, poisson(1), 100, 7);
  const auto fast = replayed_requests(UniformLengths{50, 20}, poisson(4), 100, 7);
  for (std::size_t i = 0; i < slow.size(); ++i) {
    EXPECT_EQ(slow[i].arrival_s, 4 * fast[i].arrival_s);
    EXPECT_EQ(slow[i].input_tokens, fast[i].input_tokens);
  }
  EXPECT_NE(replayed_requests(UniformLengths{50, 20}, poisson(1), 2, 8)[1].arrival_s,
            slow[1].arrival_s);
}

TEST(ArrivalsTest, LengthsAreEvenWithinTenPercent) {
  constexpr std::int64_t count = 210'000;
  const auto requests =
      replayed_requests(UniformLengths{95, 1}, {.kind = ArrivalKind::all}, count, 1);
  std::map<std::int64_t, std::int64_t> seen;
  for (const TracedRequest& request : requests) {
    ++seen[request.input_tokens];
    EXPECT_EQ(request.output_tokens, 1);  // no other whole number lies in [0.9, 1.1]
    EXPECT_EQ(request.arrival_s, 0);
  }
  // [85.5, 104.5] holds 19 whole numbers, 86 to 104.
  EXPECT_EQ(seen.size(), 19U);
  EXPECT_EQ(seen.begin()->first, 86);
  EXPECT_EQ(seen.rbegin()->first, 104);
  const double expected = static_cast<double>(count) / 19;
  double chi_squared = 0;
  for (const auto& [length, times] : seen) {
    const double difference = static_cast<double>(times) - expected;
    chi_squared += difference * difference / expected;
  }
  // 18 degrees of freedom: 60 is exceeded once in 480,000 times (scipy.stats.chi2.sf).
  EXPECT_LT(chi_squared, 60);
}

TEST(ArrivalsTest, EndsOfTheRangeAreReachedExactly) {
  const auto requests =
      replayed_requests(UniformLengths{10, 20}, {.kind = ArrivalKind::all}, 1000, 1);
  const auto [least, most] = std::minmax_element(
      requests.begin(), requests.end(),
      [](const auto& a, const auto& b) { return a.input_tokens < b.input_tokens; });
  EXPECT_EQ(least->input_tokens, 9);  // 0.9 x 10 is whole, whatever floating point makes of it
  EXPECT_EQ(most->input_tokens, 11);
}

RequestTrace three_requests(TraceFormat format) {
  RequestTrace trace;
  trace.format = format;
  trace.requests = {{.arrival_s = 0, .input_tokens = 1, .output_tokens = 4},
                    {.arrival_s = 1, .input_tokens = 2, .output_tokens = 5, .prefix_blocks = {9}},
                    {.arrival_s = 6, .input_tokens = 3, .output_tokens = 6}};
  return trace;
}

TEST(ArrivalsTest, ATraceIsTakenFromItsBeginAndBeginsAnew) {
  const RequestTrace trace = three_requests(TraceFormat::azure);
  const auto two = replayed_requests(trace, {}, 2, 0);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[1].arrival_s, 1);
  EXPECT_EQ(two[1].prefix_blocks, (std::vector<std::int64_t>{9}));
  EXPECT_EQ(replayed_requests(trace, {}, std::nullopt, 0).size(), 3U);
  const auto eight = replayed_requests(trace, {}, 8, 0);
  // The mean gap is 3 s, so that a round takes 9 s.
  const std::vector<double> times = {0, 1, 6, 9, 10, 15, 18, 19};
  ASSERT_EQ(eight.size(), times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(eight[i].arrival_s, times[i]);
    EXPECT_EQ(eight[i].output_tokens, static_cast<std::int64_t>(4 + i % 3));
  }
}

TEST(ArrivalsTest, OtherArrivalsTakeOnlyTheTracesLengths) {
  const RequestTrace trace = three_requests(TraceFormat::azure);
  for (const Arrivals& arrivals : {Arrivals{.kind = ArrivalKind::all},
                                   Arrivals{.kind = ArrivalKind::closed, .in_flight = 2}}) {
    for (const TracedRequest& request : replayed_requests(trace, arrivals, 4, 0))
      EXPECT_EQ(request.arrival_s, 0);
  }
  const auto drawn = replayed_requests(trace, poisson(4), 4, 42);
  EXPECT_EQ(drawn[1].arrival_s, 0.05617632130915079);
  EXPECT_EQ(drawn[3].input_tokens, 1);
}

TEST(ArrivalsTest, LengthsAloneNeedArrivals) {
  const std::string message =
      "--arrivals trace: only lengths are given, not when requests come; give poisson:RATE, all or "
      "closed:N";
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("was taken");
  };
  EXPECT_EQ(refused([] { replayed_requests(three_requests(TraceFormat::lengths), {}, 2, 0); }),
            message);
  EXPECT_EQ(refused([] { replayed_requests(UniformLengths{1, 1}, {}, 2, 0); }), message);
  EXPECT_EQ(refused([] {
              replayed_requests(UniformLengths{1, 1}, poisson(1), 0, 0);
            }),
            "--requests 0: expected 1 to 10000000");
  EXPECT_EQ(
      refused([] { replayed_requests(three_requests(TraceFormat::azure), {}, 10'000'001, 0); }),
      "--requests 10000001: expected 1 to 10000000");
}

TEST(ArrivalsTest, TheRateIsTheOneThatWasMet) {
  EXPECT_EQ(arrival_rate_per_s(three_requests(TraceFormat::azure).requests), 2.0 / 6);
  EXPECT_FALSE(arrival_rate_per_s({{.arrival_s = 3}}));
  EXPECT_FALSE(arrival_rate_per_s({{.arrival_s = 0}, {.arrival_s = 0}}));
}

}  // namespace
}  // namespace sluice
