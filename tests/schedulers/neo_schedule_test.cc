// NEO's iterations for requests that come (section 3.2), in random situations: against an oracle,
// the paper's inequalities, all partitions, and other machines.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>

#include "tests/schedulers/factor_costs.h"
#include "tests/schedulers/neo_oracle.h"
#include "tests/schedulers/planning.h"
#include "tests/schedulers/situations.h"

namespace sluice {
namespace {

using test::FactorCosts;
using test::NeoBatches;
using test::NeoKind;
using test::NeoPart;
using test::NeoTimes;
using test::Pools;
using test::SituationRange;
using test::to_text;

struct Setting {
  const char* machine;
  const char* shape;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.machine << " with " << setting.shape;
}

constexpr Workload workload = {.batch = 60, .input_tokens = 512, .output_tokens = 128};

/// A shipped policy that was started, with this cost model or the profile's.
class Started {
 public:
  explicit Started(const Setting& setting, const char* policy = "neo",
                   const std::map<std::string, std::string>& options = {})
      : planned_(policy, options, setting.machine, setting.shape) {
    start(planned_.costs);
  }
  void start(const CostModel& costs) {
    planned_.policy.policy().start(costs, workload);
    planned_.policy.policy().plan_memory(CapacityCheck::hbm_only);
  }
  const CostModel& costs() const { return planned_.costs; }

  Schedule schedule(Situation situation) {
    situation.under_way = true;
    std::optional<Schedule> schedule = planned_.policy.policy().schedule(situation);
    if (schedule) return *schedule;
    ADD_FAILURE() << "it leaves the schedule to the engine";
    return {};
  }

 private:
  test::Planned planned_;
};

/// The sub-batches of a schedule. A single one counts as the first.
NeoBatches batches_of(const Situation& situation, const Schedule& schedule) {
  std::map<std::int64_t, RequestView> views;
  for (const RequestView& view : situation.running) views[view.id] = view;
  for (const RequestView& view : situation.waiting) views[view.id] = view;
  for (const Swap& swap : schedule.swaps) views.at(swap.request).kv = swap.to;
  for (const Admission& admission : schedule.admissions)
    views.at(admission.request).kv = admission.kv;
  NeoBatches batches;
  for (std::size_t i = 0; i < schedule.sub_batches.size(); ++i) {
    for (const Share& share : schedule.sub_batches[i]) {
      const RequestView& view = views.at(share.request);
      NeoPart part{.id = view.id, .rows = share.rows, .context = view.context_tokens};
      part.skips = view.skips;
      if (view.prompt_tokens_left > 0) {
        part.kind = NeoPart::Kind::prompt;
      } else {
        part.kind = view.kv == Tier::hbm ? NeoPart::Kind::gpu : NeoPart::Kind::cpu;
      }
      batches.at(i).push_back(part);
    }
  }
  return batches;
}

std::int64_t count_of(const NeoBatches& batches, NeoPart::Kind kind) {
  return std::ranges::count(batches[0], kind, &NeoPart::kind) +
         std::ranges::count(batches[1], kind, &NeoPart::kind);
}

/// Mostly with both pools.
SituationRange nth_range(int i) {
  if (i % 10 == 8) return {.pools = Pools::hbm};
  if (i % 10 == 9) return {.pools = Pools::ddr};
  return {};
}

class NeoScheduleTest : public testing::TestWithParam<Setting> {};

/// How often each thing was decided, so that it shows that situations ask for all of them.
class Decisions {
 public:
  void count(const Situation& situation, const Schedule& schedule) {
    const NeoBatches batches = batches_of(situation, schedule);
    const std::int64_t cpu = count_of(batches, NeoPart::Kind::cpu);
    note("preempts", !schedule.preemptions.empty());
    for (const char* to : {"swaps out", "swaps in"}) {
      const Tier tier = std::string(to) == "swaps in" ? Tier::hbm : Tier::ddr;
      note(to, std::ranges::count(schedule.swaps, tier, &Swap::to) > 0);
    }
    note("admits to hbm", std::ranges::count(schedule.admissions, Tier::hbm, &Admission::kv) > 0);
    note("admits to ddr", std::ranges::count(schedule.admissions, Tier::ddr, &Admission::kv) > 0);
    note("two sub-batches", schedule.sub_batches.size() == 2);
    note("cpu requests in the first",
         schedule.sub_batches.size() == 2 &&
             std::ranges::count(batches[0], NeoPart::Kind::cpu, &NeoPart::kind) > 0);
    note("prompts beside cpu requests", cpu > 0 && count_of(batches, NeoPart::Kind::prompt) > 0);
    note("gpu only", !schedule.sub_batches.empty() && cpu == 0);
    note("cpu only", cpu > 0 && cpu == test::num_requests(batches));
  }
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  void note(const std::string& what, bool is_so) { counts_[what] += is_so ? 1 : 0; }

  std::map<std::string, int> counts_;
};

TEST_P(NeoScheduleTest, DecidesAsTheOracle) {
  constexpr int num_situations = 3400;  // on three machines: 10,200
  constexpr int most_shown = 3;
  Started neo(GetParam());
  const NeoTimes times(neo.costs());
  std::mt19937_64 random(43);
  Decisions decisions;
  int others = 0;
  for (int i = 0; i < num_situations; ++i) {
    const Situation situation = test::random_situation(random, nth_range(i));
    const Schedule expected = test::neo_oracle(times, situation);
    const Schedule found = neo.schedule(situation);
    decisions.count(situation, found);
    EXPECT_EQ(test::page_problem(situation, found), "") << to_text(situation) << to_text(found);
    if (test::sorted(found) == test::sorted(expected)) continue;
    if (++others <= most_shown)
      ADD_FAILURE() << "situation " << i << ": " << to_text(situation) << "neo    "
                    << to_text(found) << "\noracle " << to_text(expected);
  }
  EXPECT_EQ(others, 0) << "of " << num_situations;
  for (const auto& [what, count] : decisions.counts()) {
    std::cout << "  " << what << ": " << count << "\n";
    EXPECT_GE(count, num_situations / 200) << what;
  }
}

TEST_P(NeoScheduleTest, DecidesAsTheOracleWithNeosLaunches) {
  Started neo(GetParam(), "neo", {{"launch_us", "800"}});
  const NeoTimes times(neo.costs(), 800);
  std::mt19937_64 random(44);
  for (int i = 0; i < 1000; ++i) {
    const Situation situation = test::random_situation(random, nth_range(i));
    const Schedule expected = test::sorted(test::neo_oracle(times, situation));
    const Schedule found = test::sorted(neo.schedule(situation));
    ASSERT_TRUE(found == expected)
        << to_text(situation) << "neo    " << to_text(found) << "\noracle " << to_text(expected);
  }
}

TEST_P(NeoScheduleTest, FastDecodeRunsWhoeverCan) {
  Started fastdecode(GetParam(), "fastdecode");
  const NeoTimes times(fastdecode.costs());
  std::mt19937_64 random(45);
  for (int i = 0; i < 1000; ++i) {
    const Situation situation = test::random_situation(random, {.pools = Pools::ddr});
    const Schedule expected = test::sorted(test::neo_oracle(times, situation, NeoKind::fastdecode));
    const Schedule found = test::sorted(fastdecode.schedule(situation));
    ASSERT_TRUE(found == expected) << to_text(situation) << "fastdecode " << to_text(found)
                                   << "\noracle     " << to_text(expected);
  }
}

TEST_P(NeoScheduleTest, TheCpusWorkHidesBehindTheGpus) {
  Started neo(GetParam());
  const NeoTimes times(neo.costs());
  std::mt19937_64 random(46);
  int seen = 0;
  for (int i = 0; i < 4000; ++i) {
    const Situation situation = test::random_situation(random, {.left_out_too_long = false});
    const Schedule schedule = neo.schedule(situation);
    const NeoBatches batches = batches_of(situation, schedule);
    const std::int64_t cpu = count_of(batches, NeoPart::Kind::cpu);
    if (cpu == 0 || cpu == test::num_requests(batches)) continue;  // nobody hides, or nothing can
    ++seen;
    EXPECT_GE(times.remains_1_s(batches), 0) << to_text(situation) << to_text(schedule);
    EXPECT_GE(times.remains_0_s(batches), 0) << to_text(situation) << to_text(schedule);
    for (const NeoPart& part : batches[1]) EXPECT_EQ(part.kind, NeoPart::Kind::cpu) << part.id;
  }
  EXPECT_GE(seen, 100);
}

/// What could take part, each with the rows that it would bring, given where KV lives after the
/// schedule's swaps.
std::vector<NeoPart> candidates(const Situation& situation, const Schedule& schedule) {
  Situation after = situation;
  for (RequestView& view : after.running) {
    for (const Swap& swap : schedule.swaps) {
      if (swap.request == view.id) view.kv = swap.to;
    }
  }
  std::erase_if(after.running, [&](const RequestView& view) {
    return std::ranges::find(schedule.preemptions, view.id) != schedule.preemptions.end();
  });
  Schedule all;
  all.sub_batches.resize(1);
  for (const auto* views : {&after.running, &after.waiting}) {
    for (const RequestView& view : *views)
      all.sub_batches[0].push_back({view.id, std::max<std::int64_t>(1, view.prompt_tokens_left)});
  }
  return batches_of(after, all)[0];
}

/// The most requests over a layer's time of all partitions: each request is left out, in the first
/// sub-batch, or, where the CPU attends for it, in the second. Those in `fixed` stay in the first.
double best_requests_per_s(const NeoTimes& times, const std::vector<NeoPart>& parts,
                           const std::vector<NeoPart>& fixed = {}) {
  std::int64_t partitions = 1;
  for (std::size_t i = 0; i < parts.size(); ++i) partitions *= 3;
  double best = 0;
  for (std::int64_t number = 0; number < partitions; ++number) {
    NeoBatches batches = {fixed, {}};
    bool is_allowed = true;
    std::int64_t digits = number;
    for (const NeoPart& part : parts) {
      const std::int64_t place = std::exchange(digits, digits / 3) % 3;
      is_allowed = is_allowed && (place < 2 || part.kind == NeoPart::Kind::cpu);
      if (place > 0) batches.at(static_cast<std::size_t>(place - 1)).push_back(part);
    }
    if (is_allowed) best = std::max(best, times.requests_per_s(batches));
  }
  return best;
}

/// How much of the best there is a plan has, over many situations.
class Regret {
 public:
  void add(double chosen, double best) { shares_.push_back(chosen / best); }
  void show(const std::string& name) {
    std::ranges::sort(shares_);
    const auto count = static_cast<double>(shares_.size());
    const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
    const auto optimal =
        std::ranges::count_if(shares_, [](double share) { return share > 1 - 1e-9; });
    const std::map<std::string, double> figures = {
        {"optimal_plans", static_cast<double>(optimal) / count},
        {"mean", sum / count},
        {"least", shares_.front()},
        {"p10", shares_[shares_.size() / 10]},
        {"p50", shares_[shares_.size() / 2]}};
    std::cout << "  of " << name << ":";
    for (const auto& [figure, value] : figures) {
      std::cout << fmt::format(" {} {:.3f}", figure, value);
      testing::Test::RecordProperty(name + "_" + figure, fmt::format("{:.4f}", value));
    }
    std::cout << "\n";
  }

 private:
  std::vector<double> shares_;
};

/// The parts of some kind, or of the others.
std::vector<NeoPart> prompts_of(const std::vector<NeoPart>& parts, bool are_prompts) {
  std::vector<NeoPart> result;
  std::ranges::copy_if(parts, std::back_inserter(result), [&](const NeoPart& part) {
    return (part.kind == NeoPart::Kind::prompt) == are_prompts;
  });
  return result;
}

TEST_P(NeoScheduleTest, IsNeverBetterThanTheBestPartition) {
  Started neo(GetParam());
  const NeoTimes times(neo.costs());
  std::mt19937_64 random(47);
  // A prompt takes as long as many next tokens, so that x / T of one iteration nearly always
  // prefers to leave it out, though it has to run some time. So the best is looked for among plans
  // with the same prompts, too.
  Regret of_all;
  Regret of_same_prompts;
  for (int i = 0; i < 300; ++i) {
    Situation situation = test::random_situation(
        random, {.most_requests = 7, .recomputing = false, .left_out_too_long = false});
    // So that prompts come whole, and nothing but the plan leaves one out.
    situation.max_batch_tokens = situation.prefill_chunk_tokens =
        std::numeric_limits<std::int64_t>::max();
    situation.free_sequences = 7;
    const Schedule schedule = neo.schedule(situation);
    if (schedule.sub_batches.empty()) continue;
    const std::string text = to_text(situation) + to_text(schedule);
    const NeoBatches batches = batches_of(situation, schedule);
    const double chosen = times.requests_per_s(batches);
    const std::vector<NeoPart> parts = candidates(situation, schedule);
    const double best = best_requests_per_s(times, parts);
    const double best_beside_prompts =
        best_requests_per_s(times, prompts_of(parts, false), prompts_of(batches[0], true));
    constexpr double rounding = 1 + 1e-12;
    EXPECT_LE(chosen, best * rounding) << text;
    EXPECT_LE(chosen, best_beside_prompts * rounding) << text;
    of_all.add(chosen, best);
    of_same_prompts.add(chosen, best_beside_prompts);
    const bool admits_to_ddr =
        std::ranges::count(schedule.admissions, Tier::ddr, &Admission::kv) > 0;
    const std::int64_t cpu = count_of(batches, NeoPart::Kind::cpu);
    if (cpu == 0 || cpu == test::num_requests(batches) || admits_to_ddr) continue;
    // Step 6: more requests over T than the first sub-batch has without its CPU requests.
    NeoBatches gpu_only = {batches[0], {}};
    std::erase_if(gpu_only[0], [](const NeoPart& part) { return part.kind == NeoPart::Kind::cpu; });
    EXPECT_GT(chosen, times.requests_per_s(gpu_only)) << text;
  }
  ASSERT_FALSE(HasFailure());
  of_all.show("best_of_all_partitions");
  of_same_prompts.show("best_with_the_same_prompts");
}

// Machines on which the CPU is of no use.

/// What the engine's own rule (policy.h) computes with all KV in HBM, as far as nobody makes way:
/// next tokens first, then prompts, by arrival.
std::vector<Share> engines_rule(const Situation& situation) {
  std::vector<Share> shares;
  std::int64_t rows_left = situation.max_batch_tokens;
  std::int64_t free_pages = situation.pools.front().free_pages;
  const auto run = [&](const RequestView& view) {
    const std::int64_t rows = view.rows_within(std::min(rows_left, situation.prefill_chunk_tokens));
    rows_left -= rows;
    if (rows > 0) shares.push_back({view.id, rows});
  };
  for (const RequestView& view : situation.running) {
    if (view.prompt_tokens_left > 0) continue;
    run(view);
    free_pages -= std::max<std::int64_t>(0, view.context_tokens / page_tokens + 1 - view.pages);
  }
  for (const RequestView& view : situation.running) {
    if (view.prompt_tokens_left > 0) run(view);
  }
  std::int64_t sequences = situation.free_sequences;
  for (const RequestView& view : situation.waiting) {
    if (sequences-- == 0 || free_pages < view.pages) break;
    free_pages -= view.pages;
    run(view);
  }
  std::ranges::sort(shares, {}, &Share::request);
  return shares;
}

/// The only sub-batch of a schedule, by id.
std::vector<Share> only_sub_batch(const Schedule& schedule) {
  return schedule.sub_batches.empty() ? std::vector<Share>{}
                                      : test::sorted(schedule).sub_batches[0];
}

/// All KV in HBM, in order of arrival, with prompts of 512 tokens or more.
Situation all_in_hbm(std::mt19937_64& random) {
  Situation now = test::random_situation(
      random, {.pools = Pools::hbm, .recomputing = false, .left_out_too_long = false});
  const std::int64_t most_rows = std::ssize(now.running) + 2048;
  now.max_batch_tokens = std::clamp(now.max_batch_tokens, std::ssize(now.running) + 16, most_rows);
  std::int64_t id = 0;
  for (auto* views : {&now.running, &now.waiting}) {
    for (RequestView& view : *views) {
      view.id = id++;
      view.priority = 0;
      if (view.prompt_tokens_left == 0) continue;
      // Where few rows are left, any prompt can bring a piece. The engine looks for one that can.
      view.prompt_tokens_left += 512;
      view.pages += 512 / page_tokens;
    }
  }
  PoolView& pool = now.pools.front();
  pool.pages = pool.free_pages;
  for (const RequestView& view : now.running) pool.pages += view.pages;
  return now;
}

bool somebody_makes_way(const Situation& situation) {
  std::int64_t missing = 0;
  for (const RequestView& view : situation.running)
    missing += std::max<std::int64_t>(0, view.context_tokens / page_tokens + 1 - view.pages);
  return missing > situation.pools.front().free_pages;
}

TEST_P(NeoScheduleTest, WithASlowCpuAllIsAsOnTheGpuAlone) {
  Started neo(GetParam());
  const FactorCosts slow(neo.costs(), 1, 1000);
  neo.start(slow);
  std::mt19937_64 random(48);
  int made_way = 0;
  for (int i = 0; i < 3000; ++i) {
    Situation situation = all_in_hbm(random);
    // `gpu-only` refuses these.
    const std::int64_t most_pages = situation.pools.front().pages;
    std::erase_if(situation.waiting,
                  [&](const RequestView& request) { return request.pages > most_pages; });
    const std::vector<Share> expected = engines_rule(situation);
    situation.pools.push_back({.tier = Tier::ddr, .pages = 100'000, .free_pages = 100'000});
    const Schedule found = neo.schedule(situation);
    const std::string text = to_text(situation) + to_text(found);
    ASSERT_EQ(std::ranges::count(found.admissions, Tier::ddr, &Admission::kv), 0) << text;
    if (somebody_makes_way(situation)) {
      // Here both differ: `gpu-only` has no pool in DDR, so that who makes way is computed anew.
      // And where nobody is left in HBM, the CPU attends for those in DDR, slow or not.
      ++made_way;
      ASSERT_TRUE(found.preemptions.empty()) << text;
      ASSERT_GE(found.swaps.size(), 1U) << text;
      continue;
    }
    ASSERT_TRUE(found.swaps.empty() && found.preemptions.empty()) << text;
    ASSERT_LE(found.sub_batches.size(), 1U) << text;
    ASSERT_TRUE(only_sub_batch(found) == expected) << text;
  }
  EXPECT_GT(made_way, 10);
}

TEST_P(NeoScheduleTest, WithHbmForAllEverythingIsThere) {
  Started neo(GetParam());
  std::mt19937_64 random(49);
  for (int i = 0; i < 2000; ++i) {
    const Situation situation =
        test::random_situation(random, {.recomputing = false, .has_room = true});
    const Schedule found = neo.schedule(situation);
    const std::string text = to_text(situation) + to_text(found);
    ASSERT_LE(found.sub_batches.size(), 1U) << text;
    ASSERT_EQ(count_of(batches_of(situation, found), NeoPart::Kind::cpu), 0) << text;
    ASSERT_EQ(std::ranges::count(found.admissions, Tier::ddr, &Admission::kv), 0) << text;
    // Whose KV was in DDR, from a time when HBM was full, comes back.
    for (const RequestView& view : situation.running) {
      if (view.prompt_tokens_left > 0 || view.kv == Tier::hbm) continue;
      ASSERT_EQ(std::ranges::count(found.swaps, Swap{view.id, Tier::hbm}), 1) << view.id << text;
    }
  }
  for (int i = 0; i < 2000; ++i) {
    Situation situation = all_in_hbm(random);
    situation.pools.front() = {.tier = Tier::hbm, .pages = 200'000, .free_pages = 100'000};
    situation.pools.push_back({.tier = Tier::ddr, .pages = 100'000, .free_pages = 100'000});
    const Schedule found = neo.schedule(situation);
    ASSERT_TRUE(only_sub_batch(found) == engines_rule(situation))
        << to_text(situation) << to_text(found);
  }
}

TEST_P(NeoScheduleTest, AMachineTwiceAsFastDecidesTheSame) {
  Started neo(GetParam());
  Started faster(GetParam());
  const FactorCosts halved(neo.costs(), 0.5, 1);
  faster.start(halved);
  std::mt19937_64 random(50);
  for (int i = 0; i < 2000; ++i) {
    Situation situation = test::random_situation(random, nth_range(i));
    const Schedule expected = neo.schedule(situation);
    situation.now_s /= 2;
    for (auto* views : {&situation.waiting, &situation.running}) {
      for (RequestView& view : *views) view.arrival_s /= 2;
    }
    ASSERT_TRUE(faster.schedule(situation) == expected) << to_text(situation);
  }
}

/// Of the median call; for whoever reads it.
double schedule_us(Started& neo, const std::vector<Situation>& situations) {
  std::vector<double> times_us;
  for (const Situation& situation : situations) {
    const auto start = std::chrono::steady_clock::now();
    neo.schedule(situation);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    times_us.push_back(taken.count());
  }
  std::ranges::sort(times_us);
  std::cout << fmt::format(
      "  schedule() with 1,000 requests: median {:.0f} us, longest {:.0f} us\n",
      times_us[times_us.size() / 2], times_us.back());
  return times_us[times_us.size() / 2];
}

TEST_P(NeoScheduleTest, SchedulesAThousandRequests) {
  Started neo(GetParam());
  std::mt19937_64 random(51);
  std::vector<Situation> situations;
  while (situations.size() < 40) {
    Situation situation = test::random_situation(random, {.most_requests = 1000});
    if (std::ssize(situation.running) + std::ssize(situation.waiting) < 900) continue;
    situations.push_back(std::move(situation));
  }
  RecordProperty("schedule_us", fmt::format("{:.1f}", schedule_us(neo, situations)));
}

INSTANTIATE_TEST_SUITE_P(Machines, NeoScheduleTest,
                         testing::Values(Setting{"g4-4xlarge", "llama-2-7b"},
                                         Setting{"g5-4xlarge", "llama-3.1-8b"},
                                         Setting{"hgx-h100-2", "llama-3.1-70b"}),
                         [](const auto& of) {
                           std::string name = of.param.machine;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
