#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/batching/engine.h"
#include "tests/engine/dice.h"
#include "tests/engine/scripted_executor.h"

namespace sluice::test {

inline constexpr std::int64_t vocab_size = 64;
inline constexpr std::int32_t end_of_sequence = 1;

struct Arrival {
  Request request;
  double arrival_s = 0;
  std::optional<double> cancelled_s;
};

/// Requests that come, and some that are cancelled, when the run's clock says so.
class Arrivals : public RequestSource {
 public:
  Arrivals(const std::vector<Arrival>& arrivals, const RunClock& clock)
      : arrivals_(arrivals), clock_(clock) {}

  std::optional<Request> take(double now_s) override {
    if (ended() || arrivals_[next_].arrival_s > now_s) return std::nullopt;
    Request request = arrivals_[next_].request;
    request.arrival_s = arrivals_[next_++].arrival_s;
    return request;
  }
  std::optional<double> next_arrival_s() const override {
    return ended() ? std::nullopt : std::optional(arrivals_[next_].arrival_s);
  }
  bool ended() const override { return next_ == arrivals_.size(); }
  void wait(RunClock& clock) override {
    if (!ended()) clock.sleep_until(arrivals_[next_].arrival_s);
  }
  std::vector<std::int64_t> take_cancelled() override {
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < next_; ++i) {
      std::optional<double>& at_s = arrivals_[i].cancelled_s;
      if (!at_s || *at_s > clock_.now_s()) continue;
      indices.push_back(arrivals_[i].request.index);
      at_s.reset();
    }
    return indices;
  }

 private:
  std::vector<Arrival> arrivals_;
  std::size_t next_ = 0;
  const RunClock& clock_;
};

/// What a run is like.
struct Weather {
  std::string name = {};
  std::int64_t max_sequences = 8;
  std::optional<std::int64_t> max_batch_tokens = std::nullopt;
  std::int64_t prefill_chunk_tokens = 2048;
  std::vector<std::int64_t> pages = {24, 24};
  KvPool::Sharing sharing = KvPool::Sharing::off;
  std::int64_t max_skips = 16;
  std::int64_t max_overtakes = 64;
};

inline std::ostream& operator<<(std::ostream& out, const Weather& weather) {
  return out << weather.name;
}

using Output = std::pair<std::int64_t, std::int64_t>;  ///< of a request, which

struct Outcome {
  std::map<Output, Completion> completions;
  EngineStats stats;
  std::int64_t iterations = 0;
  std::int64_t moved_pages = 0;
};

inline std::uint64_t seed_of(const Request& request, std::int64_t output) {
  return request.sampling.seed + static_cast<std::uint64_t>(output);
}

/// Runs a policy's schedules in an engine.
class PlayedEngine {
 public:
  /// Where the policy has one pool, the last of the weather's.
  PlayedEngine(CheckedPolicy& policy, const CostModel& costs, const Workload& workload,
               const Weather& weather)
      : weather_(weather),
        policy_run_(policy, costs, workload, {}),
        pages_(weather.pages.end() - std::ssize(policy_run_.kv_cohorts()), weather.pages.end()),
        executor_(pages_, vocab_size) {
    config_.max_positions = 10'000;
    config_.vocab_size = vocab_size;
    for (const std::int64_t pages : pages_) pools_.emplace_back(pages, weather.sharing);
  }

  ScriptedExecutor& executor() { return executor_; }
  EngineEvents& events() { return events_; }

  Outcome run(const std::vector<Arrival>& arrivals) {
    for (const Arrival& arrival : arrivals) {
      for (std::int64_t output = 0; output < arrival.request.num_outputs; ++output)
        executor_.expect_sequence(seed_of(arrival.request, output), arrival.request.prompt_tokens);
    }
    Engine engine(config_, pools_, executor_,
                  {.max_sequences = weather_.max_sequences,
                   .max_batch_tokens = weather_.max_batch_tokens,
                   .prefill_chunk_tokens = weather_.prefill_chunk_tokens,
                   .admit_by = AdmitBy::known_tokens,
                   .max_skips = weather_.max_skips,
                   .max_overtakes = weather_.max_overtakes,
                   .eos_token_ids = {end_of_sequence},
                   .policy = &policy_run_});
    Outcome outcome;
    events_.on_finished = [&](Completion done) {
      const Output of(done.request->index, done.output);
      EXPECT_TRUE(outcome.completions.emplace(of, std::move(done)).second) << of.first;
    };
    Arrivals source(arrivals, executor_);
    outcome.stats = engine.run(source, events_, std::atomic<bool>{false});
    outcome.iterations = executor_.num_iterations();
    outcome.moved_pages = executor_.num_moved_pages();
    EXPECT_EQ(executor_.problem(), "");
    EXPECT_EQ(engine.num_running() + engine.num_waiting(), 0);
    for (const KvPool& pool : pools_) EXPECT_EQ(pool.num_available(), pool.num_pages());
    return outcome;
  }

 private:
  Weather weather_;
  PolicyRun policy_run_;
  std::vector<std::int64_t> pages_;
  ModelConfig config_;
  std::vector<KvPool> pools_;
  ScriptedExecutor executor_;
  EngineEvents events_;
};

/// What an output has at its end, unless it is cancelled.
inline std::vector<std::int32_t> expected_tokens(const Request& request, std::int64_t output) {
  std::vector<std::int32_t> tokens;
  while (std::ssize(tokens) < request.max_new_tokens) {
    const std::int32_t token =
        test::scripted_token(seed_of(request, output), std::ssize(tokens), vocab_size);
    if (!request.ignore_eos && token == end_of_sequence) break;
    tokens.push_back(token);
  }
  return tokens;
}

/// All outputs are there, each with all its tokens, or the first ones where it was cancelled.
inline void expect_all_tokens(const std::vector<Arrival>& arrivals, const Outcome& outcome) {
  std::size_t outputs = 0;
  for (const Arrival& arrival : arrivals) {
    for (std::int64_t output = 0; output < arrival.request.num_outputs; ++output, ++outputs) {
      const Output of(arrival.request.index, output);
      ASSERT_TRUE(outcome.completions.contains(of)) << of.first << " " << of.second;
      const Completion& done = outcome.completions.at(of);
      std::vector<std::int32_t> expected = expected_tokens(arrival.request, output);
      if (done.finish_reason == FinishReason::cancelled) {
        EXPECT_TRUE(arrival.cancelled_s.has_value()) << of.first;
        ASSERT_LE(done.token_ids.size(), expected.size()) << of.first;
        expected.resize(done.token_ids.size());
      }
      EXPECT_EQ(done.token_ids, expected) << of.first << " " << of.second;
    }
  }
  EXPECT_EQ(outcome.completions.size(), outputs);
}

inline std::vector<Arrival> random_arrivals(std::uint64_t seed, int count) {
  Dice dice(seed);
  std::vector<std::int32_t> common(64);
  for (std::int32_t& token : common) token = static_cast<std::int32_t>(dice.below(vocab_size));
  std::vector<Arrival> arrivals;
  double now_s = 0;
  for (int i = 0; i < count; ++i) {
    Arrival& arrival = arrivals.emplace_back();
    Request& request = arrival.request;
    request.index = i;
    request.id = std::to_string(i);
    if (dice.percent(50))
      request.prompt_tokens.assign(common.begin(), common.begin() + dice.below(64));
    const std::int64_t own = 1 + dice.below(dice.percent(25) ? 90 : 12);
    for (std::int64_t k = 0; k < own; ++k)
      request.prompt_tokens.push_back(static_cast<std::int32_t>(dice.below(vocab_size)));
    request.max_new_tokens = 1 + dice.below(50);
    request.ignore_eos = dice.percent(70);
    request.priority = static_cast<int>(dice.below(3));
    request.num_outputs = dice.percent(20) ? 1 + dice.below(3) : 1;
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<std::uint64_t>(i) * 16;
    if (dice.percent(50)) now_s += 1e-3 * static_cast<double>(dice.below(30));
    arrival.arrival_s = now_s;
    if (dice.percent(15)) arrival.cancelled_s = now_s + 1e-3 * static_cast<double>(dice.below(100));
  }
  return arrivals;
}

}  // namespace sluice::test
