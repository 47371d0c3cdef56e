// The engine follows a policy's schedules: all tokens come, pages have one owner, nobody is passed
// over for ever. What computes is played.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "tests/engine/played_engine.h"
#include "tests/engine/random_orders.h"

namespace sluice {
namespace {

using test::Arrival;
using test::Dice;
using test::Outcome;
using test::pages_for;
using test::PlayedEngine;
using test::random_arrivals;
using test::RandomOrders;
using test::ScriptedExecutor;
using test::TestMachine;
using test::TestPolicy;
using test::vocab_size;
using test::Weather;

PlayedEngine played(TestMachine& machine, const Weather& weather) {
  return {machine.checked,
          machine.costs,
          {.batch = weather.max_sequences, .input_tokens = 64, .output_tokens = 64},
          weather};
}

// Orders at random.

class RandomOrdersTest : public testing::TestWithParam<Weather> {};

TEST_P(RandomOrdersTest, AllTokensComeAndPagesHaveOneOwner) {
  Outcome sum;
  std::int64_t num_empty = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    RandomOrders policy(seed);
    TestMachine machine(policy);
    PlayedEngine engine = played(machine, GetParam());
    const std::vector<Arrival> arrivals = random_arrivals(seed, 100);
    const Outcome outcome = engine.run(arrivals);
    expect_all_tokens(arrivals, outcome);
    sum.iterations += outcome.iterations;
    sum.moved_pages += outcome.moved_pages;
    sum.stats.preemptions += outcome.stats.preemptions;
    sum.stats.swapped_in_pages += outcome.stats.swapped_in_pages;
    sum.stats.swapped_out_pages += outcome.stats.swapped_out_pages;
    sum.stats.prefix_hit_tokens += outcome.stats.prefix_hit_tokens;
    num_empty += policy.num_empty;
    if (HasFailure()) return;
  }
  RecordProperty("iterations", static_cast<int>(sum.iterations));
  EXPECT_GT(sum.iterations, 1000);
  EXPECT_GT(sum.stats.preemptions, 100);
  EXPECT_GT(sum.stats.swapped_in_pages, 100);
  EXPECT_GT(sum.stats.swapped_out_pages, 100);
  EXPECT_EQ(sum.moved_pages, sum.stats.swapped_in_pages + sum.stats.swapped_out_pages);
  EXPECT_GT(num_empty, 10);
  EXPECT_EQ(sum.stats.prefix_hit_tokens > 0, GetParam().sharing == KvPool::Sharing::on);
}

INSTANTIATE_TEST_SUITE_P(
    Weathers, RandomOrdersTest,
    testing::Values(Weather{.name = "roomy", .pages = {100, 100}},
                    Weather{.name = "tight", .max_batch_tokens = 24},
                    Weather{.name = "very_tight",
                            .max_sequences = 12,
                            .max_batch_tokens = 40,
                            .prefill_chunk_tokens = 16,
                            .pages = {13, 12}},
                    Weather{.name = "uneven", .max_batch_tokens = 31, .pages = {12, 60}},
                    Weather{.name = "shared",
                            .max_batch_tokens = 50,
                            .pages = {30, 30},
                            .sharing = KvPool::Sharing::on},
                    Weather{.name = "shared_tight",
                            .max_batch_tokens = 25,
                            .pages = {14, 16},
                            .sharing = KvPool::Sharing::on,
                            .max_skips = 3,
                            .max_overtakes = 5}),
    [](const auto& of) { return of.param.name; });

// Fairness.

/// Looks at every situation and iteration, and counts by itself who was left out and passed. Asks a
/// plan of `how`. Each request has one output, so that the engine's ids are the requests' indices.
class Watched : public TestPolicy {
 public:
  using How = std::function<std::optional<Schedule>(const Situation&)>;
  explicit Watched(How how) : how_(std::move(how)) {}

  std::optional<Schedule> schedule(const Situation& situation) override {
    std::set<std::int64_t> running;
    for (const RequestView& view : situation.running) running.insert(view.id);
    // Who was left out and is no longer there made way: then it begins anew.
    std::erase_if(skips_, [&](const auto& of) { return !running.contains(of.first); });
    for (const std::int64_t id : left_out_) {
      if (running.contains(id)) most_skips = std::max(most_skips, ++skips_[id]);
    }
    left_out_.clear();
    running_ = running;
    return how_(situation);
  }

  void on_submit(const ScriptedExecutor::Rows& rows) {
    std::set<std::int64_t> there;
    for (const auto& [seed, count] : rows) there.insert(static_cast<std::int64_t>(seed / 16));
    for (const std::int64_t id : running_) {
      if (there.contains(id)) {
        skips_[id] = 0;
      } else if (id < *there.rbegin()) {
        left_out_.insert(id);
      }
    }
  }
  void on_arrival(std::int64_t id) { overtakes_[id] = 0; }
  void on_admitted(std::int64_t id) {
    overtakes_.erase(id);
    for (auto& [other, count] : overtakes_) {
      if (other < id) most_overtakes = std::max(most_overtakes, ++count);
    }
  }

  std::int64_t most_skips = 0;
  std::int64_t most_overtakes = 0;

 private:
  How how_;
  std::set<std::int64_t> running_;
  std::set<std::int64_t> left_out_;  ///< of the last iteration, by a later one
  std::map<std::int64_t, std::int64_t> skips_;
  std::map<std::int64_t, std::int64_t> overtakes_;  ///< of those that wait for the first time
};

/// A schedule that takes what it can: admits `waiting` in this order, and gives those in `order`
/// rows one after the other, in one sub-batch.
Schedule greedy(const Situation& situation, const std::vector<RequestView>& waiting,
                const std::function<void(std::vector<RequestView>&)>& order) {
  Schedule schedule;
  std::map<Tier, std::int64_t> free;
  for (const PoolView& pool : situation.pools) free[pool.tier] = pool.free_pages;
  std::vector<RequestView> running = situation.running;
  std::int64_t sequences = situation.free_sequences;
  for (RequestView view : waiting) {
    if (sequences == 0) break;
    for (const Tier tier : {Tier::hbm, Tier::ddr}) {
      if (free[tier] < view.pages) continue;
      free[tier] -= view.pages;
      view.kv = tier;
      schedule.admissions.push_back({view.id, tier});
      running.push_back(view);
      --sequences;
      break;
    }
  }
  order(running);
  std::vector<Share> shares;
  std::int64_t rows_left = situation.max_batch_tokens;
  for (const RequestView& view : running) {
    const std::int64_t rows = view.rows_within(std::min(rows_left, situation.prefill_chunk_tokens));
    const std::int64_t missing =
        std::max<std::int64_t>(0, pages_for(view.context_tokens + rows) - view.pages);
    if (rows == 0 || free[view.kv] < missing) continue;
    free[view.kv] -= missing;
    rows_left -= rows;
    shares.push_back({view.id, rows});
  }
  if (!shares.empty()) schedule.sub_batches.push_back(shares);
  return schedule;
}

/// Where a schedule runs nobody, the engine decides.
std::optional<Schedule> unless_empty(Schedule schedule) {
  if (schedule.sub_batches.empty()) return std::nullopt;
  return schedule;
}

constexpr auto keep_order = [](std::vector<RequestView>&) {};
constexpr auto latest_first = [](std::vector<RequestView>& views) {
  std::ranges::sort(views, std::greater<>(), &RequestView::id);
};
/// Unless it is alone.
constexpr auto without_the_oldest = [](std::vector<RequestView>& views) {
  std::ranges::sort(views, {}, &RequestView::id);
  if (views.size() > 1) views.erase(views.begin());
};
/// The latest prompt if there is one, and nobody else.
constexpr auto one_prompt = [](std::vector<RequestView>& views) {
  std::ranges::sort(views, std::greater<>(), [](const RequestView& view) {
    return std::pair(view.prompt_tokens_left > 0, view.id);
  });
  if (!views.empty() && views.front().prompt_tokens_left > 0) views.resize(1);
};

struct Unfair {
  std::string name;
  Watched::How how;
  /// Whom it wrongs as often as it may.
  bool leaves_out = false;
  bool passes = false;
};

std::ostream& operator<<(std::ostream& out, const Unfair& unfair) { return out << unfair.name; }

std::vector<RequestView> sorted_waiting(const Situation& situation, const auto& order) {
  std::vector<RequestView> waiting = situation.waiting;
  order(waiting);
  return waiting;
}

const std::vector<Unfair>& unfair_policies() {
  static const std::vector<Unfair> policies = {
      {.name = "leaves_out_the_oldest",
       .how =
           [](const Situation& now) {
             return unless_empty(greedy(now, now.waiting, without_the_oldest));
           },
       .leaves_out = true},
      {.name = "never_admits_the_oldest",
       .how =
           [](const Situation& now) {
             return unless_empty(greedy(now, sorted_waiting(now, without_the_oldest), keep_order));
           },
       .passes = true},
      {.name = "latest_first",
       .how =
           [](const Situation& now) {
             return unless_empty(greedy(now, sorted_waiting(now, latest_first), latest_first));
           },
       .leaves_out = true,
       .passes = true},
      {.name = "one_prompt_at_a_time",
       .how =
           [](const Situation& now) { return unless_empty(greedy(now, now.waiting, one_prompt)); },
       .leaves_out = true},
      {.name = "the_engines_own_rule", .how = [](const Situation&) { return std::nullopt; }}};
  return policies;
}

/// A stream in which somebody always comes who is preferred: later ones have higher priority, or
/// any, and lengths vary.
std::vector<Arrival> adversarial_arrivals(std::uint64_t seed, int count) {
  Dice dice(seed);
  std::vector<Arrival> arrivals;
  for (int i = 0; i < count; ++i) {
    Arrival& arrival = arrivals.emplace_back();
    Request& request = arrival.request;
    request.index = i;
    request.id = std::to_string(i);
    const std::int64_t length = 1 + dice.below(dice.percent(20) ? 100 : 20);
    for (std::int64_t k = 0; k < length; ++k)
      request.prompt_tokens.push_back(static_cast<std::int32_t>(dice.below(vocab_size)));
    request.max_new_tokens = dice.percent(30) ? 60 : 1 + dice.below(10);
    request.ignore_eos = true;
    request.priority = seed % 2 == 0 ? -i : static_cast<int>(dice.below(5));
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<std::uint64_t>(i) * 16;
    arrival.arrival_s = 2e-3 * i;
  }
  return arrivals;
}

class FairnessTest : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t>> {};

TEST_P(FairnessTest, NobodyIsPassedOverForEver) {
  const auto& [number, limit] = GetParam();
  const Unfair& unfair = unfair_policies().at(number);
  Weather weather{.max_batch_tokens = 32, .prefill_chunk_tokens = 24, .pages = {20, 20}};
  if (limit > 0) {
    weather.max_skips = limit;
    weather.max_overtakes = limit + 2;
  }
  std::int64_t most_skips = 0;
  std::int64_t most_overtakes = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Watched watched(unfair.how);
    TestMachine machine(watched);
    PlayedEngine engine = played(machine, weather);
    std::vector<Arrival> arrivals = adversarial_arrivals(seed, 300);
    engine.executor().on_submit = [&](const auto& rows) { watched.on_submit(rows); };
    engine.events().on_admitted = [&](const Request& request, std::int64_t) {
      watched.on_admitted(request.index);
    };
    // All that come count as waiting, whether the engine has taken them or not: later ones have
    // come later in either case.
    for (const Arrival& arrival : arrivals) watched.on_arrival(arrival.request.index);
    expect_all_tokens(arrivals, engine.run(arrivals));
    EXPECT_LE(watched.most_skips, weather.max_skips);
    EXPECT_LE(watched.most_overtakes, weather.max_overtakes);
    most_skips = std::max(most_skips, watched.most_skips);
    most_overtakes = std::max(most_overtakes, watched.most_overtakes);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(!unfair.leaves_out || most_skips == weather.max_skips) << most_skips;
  EXPECT_TRUE(!unfair.passes || most_overtakes == weather.max_overtakes) << most_overtakes;
}

INSTANTIATE_TEST_SUITE_P(Policies, FairnessTest,
                         testing::Combine(testing::Range<std::size_t>(0, 5),
                                          testing::Values<std::int64_t>(0, 3)),
                         [](const auto& of) {
                           return unfair_policies().at(std::get<0>(of.param)).name +
                                  (std::get<1>(of.param) > 0 ? "_small_limits" : "");
                         });

// Pages that are not there.

/// Request 0 with so many tokens, in HBM, and request 1 with 10.
std::vector<Arrival> two_arrivals(std::size_t tokens) {
  std::vector<Arrival> arrivals(2);
  for (std::size_t i = 0; i < 2; ++i) {
    Request& request = arrivals[i].request;
    request.index = static_cast<std::int64_t>(i);
    request.prompt_tokens.assign(i == 0 ? tokens : 10, 5);
    request.max_new_tokens = 6;
    request.ignore_eos = true;
    request.sampling.seed = 16 * i;
  }
  return arrivals;
}

/// What the engine says of a policy that answers so when it is asked for the nth time; a pool of
/// three pages in HBM, another of ten.
std::string refusal(const std::vector<Arrival>& arrivals, const std::vector<Schedule>& answers) {
  std::size_t asked = 0;
  Watched puppet(
      [&](const Situation&) { return answers.at(std::min(asked++, answers.size() - 1)); });
  TestMachine machine(puppet);
  PlayedEngine engine = played(machine, {.pages = {3, 10}});
  try {
    engine.run(arrivals);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr const char* advice = "; correct the policy, or take another with --policy";

TEST(ImpossiblePagesTest, AnAdmissionWithoutRoom) {
  const Schedule both = {.preemptions = {},
                         .swaps = {},
                         .admissions = {{0, Tier::hbm}, {1, Tier::hbm}},
                         .sub_batches = {{{0, 40}}}};
  EXPECT_EQ(refusal(two_arrivals(40), {both}),
            std::string("policy played: schedule: request 1 needs 1 pages in hbm, and 0 are free") +
                advice);
}

TEST(ImpossiblePagesTest, ASwapWithoutRoom) {
  const Schedule apart = {.preemptions = {},
                          .swaps = {},
                          .admissions = {{0, Tier::hbm}, {1, Tier::ddr}},
                          .sub_batches = {{{0, 40}, {1, 10}}}};
  const Schedule swap = {
      .preemptions = {}, .swaps = {{1, Tier::hbm}}, .admissions = {}, .sub_batches = {{{0, 1}}}};
  EXPECT_EQ(refusal(two_arrivals(40), {apart, swap}),
            std::string("policy played: schedule: request 1 needs 1 pages in hbm, and 0 are free") +
                advice);
}

TEST(ImpossiblePagesTest, RowsWithoutRoom) {
  const Schedule admit = {
      .preemptions = {}, .swaps = {}, .admissions = {{0, Tier::hbm}}, .sub_batches = {{{0, 46}}}};
  const Schedule run = {
      .preemptions = {}, .swaps = {}, .admissions = {}, .sub_batches = {{{0, 1}}}};
  EXPECT_EQ(refusal(two_arrivals(46), {admit, run}),
            std::string("policy played: schedule: request 0 needs 1 pages in hbm, and 0 are free") +
                advice);
}

}  // namespace
}  // namespace sluice
