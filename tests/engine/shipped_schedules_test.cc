// Shipped policies' schedules in an engine that plays: all tokens come, and iterations are what
// each policy says they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/engine/played_engine.h"
#include "tests/schedulers/factor_costs.h"
#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

using test::Arrival;
using test::PlayedEngine;
using test::ScriptedExecutor;
using test::Weather;

/// So much that HBM has no room for all KV, so that `neo` has a pool in DDR, too.
constexpr Workload large = {.batch = 400, .input_tokens = 1000, .output_tokens = 100};
constexpr Workload small = {.batch = 8, .input_tokens = 64, .output_tokens = 64};

struct Setting {
  const char* policy;
  Weather weather;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.policy << " " << setting.weather;
}

std::vector<Setting> settings() {
  const std::vector<Weather> weathers = {
      {.name = "roomy", .pages = {200, 200}},
      {.name = "tight", .max_batch_tokens = 40, .pages = {14, 14}},
      // Some requests fit DDR alone.
      {.name = "small_hbm", .max_batch_tokens = 200, .pages = {5, 60}},
      {.name = "large_hbm", .max_batch_tokens = 64, .prefill_chunk_tokens = 32, .pages = {60, 13}},
      {.name = "shared",
       .max_batch_tokens = 50,
       .pages = {14, 14},
       .sharing = KvPool::Sharing::on,
       .max_skips = 3,
       .max_overtakes = 5}};
  std::vector<Setting> all;
  for (const char* policy : {"neo", "fastdecode", "symmetric", "simple-offload"}) {
    for (const Weather& weather : weathers) all.push_back({policy, weather});
  }
  return all;
}

/// Whether an iteration is what policies.md says of a policy.
void expect_form(const std::string& policy, const IterationReport& report) {
  std::int64_t prompts = 0;
  std::int64_t decodes = 0;
  for (const IterationReport::SubBatch& one : report.sub_batches) {
    prompts += one.prompts;
    decodes += one.decodes;
  }
  const std::size_t parts = report.sub_batches.size();
  ASSERT_LE(parts, 2U) << report.number;
  if (policy == "simple-offload") {
    EXPECT_EQ(parts, 1U) << report.number;
  }
  if (policy == "symmetric") {
    EXPECT_TRUE(prompts == 0 || decodes == 0) << report.number;
    if (parts == 2) {
      EXPECT_LE(std::abs(report.sub_batches[0].decodes - report.sub_batches[1].decodes), 1)
          << report.number;
    }
    EXPECT_EQ(parts, decodes > 1 ? 2U : 1U) << report.number;
  }
  if (parts == 2) {
    EXPECT_EQ(report.sub_batches[1].prompts, 0) << report.number;
  }
}

class ShippedSchedulesTest : public testing::TestWithParam<Setting> {};

TEST_P(ShippedSchedulesTest, AllTokensCome) {
  const auto& [name, weather] = GetParam();
  for (const auto& [machine, shape] :
       {std::pair("g4-4xlarge", "llama-2-7b"), std::pair("g5-4xlarge", "llama-3.1-8b")}) {
    test::Planned planned(name, {}, machine, shape);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", machine, seed));
      PlayedEngine engine(planned.policy.policy(), planned.costs, large, weather);
      engine.events().on_iteration = [&, policy = name](const IterationReport& report) {
        // Where requests were left out too often, the engine adds them.
        if (weather.max_skips >= 16) expect_form(policy, report);
      };
      const std::vector<Arrival> arrivals = test::random_arrivals(seed, 80);
      expect_all_tokens(arrivals, engine.run(arrivals));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ShippedSchedulesTest, testing::ValuesIn(settings()),
                         [](const auto& of) {
                           std::string name = of.param.policy;
                           std::erase(name, '-');
                           return name + "_" + of.param.weather.name;
                         });

// Where the CPU is of no use.

/// The rows of each iteration.
std::vector<ScriptedExecutor::Rows> iterations(CheckedPolicy& policy, const CostModel& costs,
                                               const Workload& workload,
                                               const std::vector<Arrival>& arrivals) {
  const Weather weather = {.max_sequences = 20,
                           .max_batch_tokens = 200,
                           .prefill_chunk_tokens = 150,
                           .pages = {1000, 1000}};
  PlayedEngine engine(policy, costs, workload, weather);
  std::vector<ScriptedExecutor::Rows> all;
  engine.executor().on_submit = [&](const auto& rows) { all.push_back(rows); };
  expect_all_tokens(arrivals, engine.run(arrivals));
  return all;
}

TEST(SlowCpuTest, NeoRunsWhatGpuOnlyRuns) {
  test::Planned neo("neo", {}, "g5-4xlarge", "llama-3.1-8b");
  test::Planned gpu_only("gpu-only", {}, "g5-4xlarge", "llama-3.1-8b");
  const test::FactorCosts slow(neo.costs, 1, 1000);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<Arrival> arrivals = test::random_arrivals(seed, 100);
    for (Arrival& arrival : arrivals) {
      // The engine's rule admits ahead of rows, which by priority makes a difference; and it looks
      // for prompts that are short enough for the rows that are left.
      arrival.request.priority = 0;
      arrival.request.prompt_tokens.resize(arrival.request.prompt_tokens.size() + 24, 3);
    }
    EXPECT_EQ(iterations(neo.policy.policy(), slow, large, arrivals),
              iterations(gpu_only.policy.policy(), gpu_only.costs, small, arrivals));
  }
}

}  // namespace
}  // namespace sluice
