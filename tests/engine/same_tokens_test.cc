// Requests that arrive, wait, make way, move and are cancelled give the tokens that each gives
// alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/batching/engine.h"
#include "engine/run/graph_executor.h"
#include "tests/engine/arriving_requests.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::ArrivingRequests;

/// What happens in a run, besides requests that come.
struct Weather {
  std::string name = {};
  DType dtype = DType::f32;
  std::int64_t max_sequences = 8;
  std::optional<std::int64_t> max_batch_tokens = std::nullopt;
  std::int64_t pages = 40;  ///< of each pool
  std::size_t pools = 1;
  KvPool::Sharing sharing = KvPool::Sharing::off;
  AdmitBy admit_by = AdmitBy::known_tokens;
  double cancelled = 0;  ///< of the requests
};

std::ostream& operator<<(std::ostream& out, const Weather& weather) { return out << weather.name; }

class SameTokensTest : public ::testing::TestWithParam<Weather> {
 protected:
  using Tokens = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int32_t>>;

  static constexpr int num_requests = 60;

  struct Outcome {
    Tokens tokens;
    std::map<std::pair<std::int64_t, std::int64_t>, FinishReason> reasons;
    EngineStats stats;
    std::int64_t most_swapped = 0;  ///< of an iteration
  };

  static Outcome run(test::TestModel& model, const Weather& weather, ArrivingRequests& source) {
    const ModelConfig& config = model.loaded().config();
    std::vector<KvCache> caches;
    std::vector<KvPool> pools;
    for (std::size_t i = 0; i < weather.pools; ++i) {
      caches.emplace_back(model.loaded().shape(), config.num_layers, weather.pages);
      pools.emplace_back(weather.pages, weather.sharing);
    }
    GraphExecutor executor(model.loaded(), caches, {.num_slots = weather.max_sequences});
    Engine engine(config, pools, executor,
                  {.max_sequences = weather.max_sequences,
                   .max_batch_tokens = weather.max_batch_tokens,
                   .admit_by = weather.admit_by,
                   .eos_token_ids = {1, 2, 3}});
    Outcome outcome;
    const EngineEvents events = {
        .on_iteration =
            [&](const IterationReport& report) {
              EXPECT_LE(report.swapped, report.running);
              outcome.most_swapped = std::max(outcome.most_swapped, report.swapped);
            },
        .on_token =
            [&](const Request&, const DrawnToken&) {
              source.note_token();
              return Verdict::goes_on;
            },
        .on_finished =
            [&](Completion done) {
              const std::pair of(done.request->index, done.output);
              EXPECT_TRUE(outcome.reasons.emplace(of, done.finish_reason).second);
              outcome.tokens[of] = std::move(done.token_ids);
            }};
    outcome.stats = engine.run(source, events, std::atomic<bool>{false});
    for (const KvPool& pool : pools) EXPECT_EQ(pool.num_available(), pool.num_pages());
    return outcome;
  }
};

TEST_P(SameTokensTest, AsEachGivesAlone) {
  const Weather& weather = GetParam();
  test::TestModel model("tiny", weather.dtype, 2);
  std::mt19937_64 random(17);
  const std::vector<Request> requests =
      test::random_requests(random, model.loaded().config().vocab_size, num_requests);
  const std::vector<ArrivingRequests::Arrival> together =
      test::arriving_at_random(random, requests, weather.cancelled);
  ArrivingRequests alone(test::one_by_one(requests));
  const Outcome expected = run(model,
                               {.name = "alone",
                                .dtype = weather.dtype,
                                .max_sequences = 1,
                                .admit_by = AdmitBy::whole_output},
                               alone);
  ArrivingRequests arriving(together);
  const Outcome found = run(model, weather, arriving);
  ASSERT_EQ(found.tokens.size(), expected.tokens.size());
  std::int64_t cancelled = 0;
  for (const auto& [of, tokens] : expected.tokens) {
    const std::vector<std::int32_t>& others = found.tokens.at(of);
    if (found.reasons.at(of) == FinishReason::cancelled) {
      ++cancelled;
      ASSERT_LE(others.size(), tokens.size()) << of.first << " " << of.second;
      EXPECT_TRUE(std::equal(others.begin(), others.end(), tokens.begin())) << of.first;
    } else {
      EXPECT_EQ(others, tokens) << of.first << " " << of.second;
      EXPECT_EQ(found.reasons.at(of), expected.reasons.at(of)) << of.first;
    }
  }
  EXPECT_EQ(cancelled > 0, weather.cancelled > 0);
  const bool is_tight = weather.admit_by == AdmitBy::known_tokens && weather.pages < 40;
  EXPECT_EQ(found.stats.preemptions > 0, is_tight);
  EXPECT_EQ(found.stats.swapped_out_pages > 0, is_tight && weather.pools > 1);
  EXPECT_EQ(found.most_swapped > 0, is_tight && weather.pools > 1);
  EXPECT_EQ(found.stats.prefix_hit_tokens > 0, weather.sharing == KvPool::Sharing::on);
}

/// Notes in which iteration the engine was told of a cancellation.
class NotedArrivals : public ArrivingRequests {
 public:
  NotedArrivals(std::vector<Arrival> arrivals, const std::int64_t& iterations)
      : ArrivingRequests(std::move(arrivals)), iterations_(iterations) {}
  std::vector<std::int64_t> take_cancelled() override {
    std::vector<std::int64_t> indices = ArrivingRequests::take_cancelled();
    if (!indices.empty()) told_in_ = iterations_;
    return indices;
  }
  std::optional<std::int64_t> told_in() const { return told_in_; }

 private:
  const std::int64_t& iterations_;
  std::optional<std::int64_t> told_in_;
};

/// Beside two requests that go on, whose pages grow by known numbers.
TEST(CancelTest, FreesItsPagesWithinTwoIterations) {
  constexpr std::int64_t prompt = 100;
  constexpr std::int64_t pages = 64;
  test::TestModel model("tiny", DType::f32, 2);
  const ModelConfig& config = model.loaded().config();
  std::vector<ArrivingRequests::Arrival> arrivals;
  for (std::int64_t i = 0; i < 3; ++i) {
    Request request;
    request.index = i;
    request.id = std::to_string(i);
    for (std::int64_t k = 0; k < prompt; ++k)
      request.prompt_tokens.push_back(static_cast<std::int32_t>(1 + 3 * k + i));
    request.max_new_tokens = 40;
    request.ignore_eos = true;
    arrivals.push_back({.request = request, .after_tokens = 0, .cancelled_after_tokens = {}});
  }
  arrivals[1].cancelled_after_tokens = 20;
  const std::vector<KvCache> caches = [&] {
    std::vector<KvCache> made;
    made.emplace_back(model.loaded().shape(), config.num_layers, pages);
    return made;
  }();
  std::vector<KvPool> pools = {KvPool(pages)};
  GraphExecutor executor(model.loaded(), caches, {.num_slots = 3});
  Engine engine(config, pools, executor, {.max_sequences = 3, .admit_by = AdmitBy::known_tokens});
  std::int64_t iterations = 0;
  NotedArrivals source(arrivals, iterations);
  std::map<std::int64_t, std::int64_t> held;  // by iteration
  const EngineEvents events = {
      .on_iteration =
          [&](const IterationReport&) { held[++iterations] = pages - pools[0].num_available(); },
      .on_token =
          [&](const Request&, const DrawnToken&) {
            source.note_token();
            return Verdict::goes_on;
          }};
  engine.run(source, events, std::atomic<bool>{false});
  ASSERT_TRUE(source.told_in().has_value());
  const std::int64_t told_in = *source.told_in();
  ASSERT_TRUE(held.contains(told_in) && held.contains(told_in + 2));
  const std::int64_t of_one = KvCache::pages_for(prompt);
  EXPECT_GE(held[told_in], 3 * of_one);
  // The others may each have taken one more.
  EXPECT_LE(held[told_in + 2], held[told_in] - of_one + 2);
  EXPECT_LT(held[told_in + 2], 3 * of_one);
}

INSTANTIATE_TEST_SUITE_P(
    Weathers, SameTokensTest,
    ::testing::Values(
        Weather{.name = "calm", .pages = 200},
        Weather{.name = "calm_bf16", .dtype = DType::bf16, .pages = 200},
        Weather{.name = "cut", .max_batch_tokens = 24, .pages = 200},
        Weather{.name = "cut_bf16", .dtype = DType::bf16, .max_batch_tokens = 25, .pages = 200},
        Weather{.name = "tight", .max_batch_tokens = 40, .pages = 16},
        Weather{.name = "tight_bf16", .dtype = DType::bf16, .pages = 17},
        Weather{.name = "shared", .pages = 200, .sharing = KvPool::Sharing::on},
        Weather{.name = "shared_tight_bf16",
                .dtype = DType::bf16,
                .max_batch_tokens = 31,
                .pages = 18,
                .sharing = KvPool::Sharing::on},
        Weather{.name = "two_pools", .pages = 16, .pools = 2},
        Weather{.name = "two_pools_bf16",
                .dtype = DType::bf16,
                .max_batch_tokens = 30,
                .pages = 14,
                .pools = 2,
                .sharing = KvPool::Sharing::on,
                .cancelled = 0.2},
        Weather{.name = "cancelled", .pages = 30, .cancelled = 0.3}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace sluice
