// Which iterations a plan takes a policy to make of a run.
#include "engine/plan/rehearsal.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/schedulers/policy_costs.h"

namespace sluice {
namespace {

using test::PolicyCosts;

/// Asks a function which requests run, each list a sub-batch.
class Chooser : public Policy {
 public:
  using Ids = std::vector<std::int64_t>;
  using Choice = std::vector<Ids>;  ///< by sub-batch

  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    ++times_asked;
    IterationPlan plan;
    for (Ids& ids : choose(requests)) plan.sub_batches.push_back({std::move(ids)});
    return plan;
  }

  std::function<Choice(const std::vector<RequestView>&)> choose;
  int times_asked = 0;
};

Chooser::Ids ids_of(const std::vector<RequestView>& requests) {
  Chooser::Ids ids;
  for (const RequestView& request : requests) ids.push_back(request.id);
  return ids;
}

/// Of iterations that take so long and whose mean token is so long before the last.
double per_token_s(const Rehearsal& rehearsal,
                   const std::vector<std::pair<double, double>>& seconds_and_rest) {
  std::vector<IterationEstimate> iterations;
  for (const auto& [seconds, rest_s] : seconds_and_rest)
    iterations.push_back({seconds, {}, rest_s});
  return rehearsal.time_per_output_token_s(iterations);
}

class RehearsalTest : public testing::Test {
 protected:
  Rehearsal rehearse(const Workload& workload, MemoryPlan memory = in_ddr()) {
    checked_.start(costs_, workload);
    return {checked_, workload, memory};
  }
  static MemoryPlan in_ddr() {
    return {.layers = std::vector<LayerHomes>(2, LayerHomes::all(Tier::ddr, Tier::ddr))};
  }

  PolicyCosts costs_;
  Chooser chooser_;
  CheckedPolicy checked_{chooser_, "chooser"};
};

TEST_F(RehearsalTest, AllTogetherArePromptsAndThenTokens) {
  chooser_.choose = [](const auto& requests) { return Chooser::Choice{ids_of(requests)}; };
  const Rehearsal rehearsal = rehearse({.batch = 3, .input_tokens = 6, .output_tokens = 33});
  ASSERT_EQ(rehearsal.groups().size(), 2);
  const AlikeIterations& prompts = rehearsal.groups()[0];
  EXPECT_EQ(prompts.phase, Phase::prefill);
  EXPECT_EQ(prompts.count, 1);
  ASSERT_EQ(prompts.sub_batches.size(), 1);
  ASSERT_EQ(prompts.sub_batches[0].size(), 1);
  EXPECT_EQ(prompts.sub_batches[0][0].shape, BatchShape::prefill(3, 6));
  const AlikeIterations& tokens = rehearsal.groups()[1];
  EXPECT_EQ(tokens.phase, Phase::decode);
  EXPECT_EQ(tokens.count, 32);
  // They see 7 to 38 tokens, 22.5 on average.
  EXPECT_EQ(tokens.sub_batches.at(0).at(0).shape, BatchShape::decode(3, 23));
  EXPECT_EQ(chooser_.times_asked, 1 + 8);
  EXPECT_DOUBLE_EQ(per_token_s(rehearsal, {{5, 0}, {0.25, 0}}), 0.25);
  // Of 5 seconds the mean sequence has its token at 2, and of the last 0.25 at 0.15.
  EXPECT_DOUBLE_EQ(per_token_s(rehearsal, {{5, 3}, {0.25, 0.1}}), (3 + 32 * 0.25 - 0.1) / 32);
}

TEST_F(RehearsalTest, OneTokenNeedsNoDecode) {
  chooser_.choose = [](const auto& requests) { return Chooser::Choice{ids_of(requests)}; };
  const Rehearsal rehearsal = rehearse({.batch = 3, .input_tokens = 6, .output_tokens = 1});
  ASSERT_EQ(rehearsal.groups().size(), 2);
  EXPECT_EQ(rehearsal.groups()[1].count, 0);
  EXPECT_EQ(rehearsal.groups()[1].sub_batches.at(0).at(0).shape, BatchShape::decode(3, 7));
}

/// One prompt an iteration, beside those that decode.
TEST_F(RehearsalTest, PromptsBesideTokensAreOfThePrefill) {
  chooser_.choose = [](const std::vector<RequestView>& requests) {
    Chooser::Ids ids;
    bool has_prompt = false;
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left > 0 && std::exchange(has_prompt, true)) continue;
      ids.push_back(request.id);
    }
    return Chooser::Choice{ids};
  };
  const Rehearsal rehearsal = rehearse({.batch = 3, .input_tokens = 4, .output_tokens = 5});
  const std::vector<AlikeIterations>& groups = rehearsal.groups();
  // The first prompt alone; the second beside one request; the third beside two; then three
  // requests decode, two, one.
  ASSERT_EQ(groups.size(), 6);
  EXPECT_EQ(groups[0].sub_batches[0].size(), 1);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_EQ(groups[i].phase, Phase::prefill);
    EXPECT_EQ(groups[i].count, 1);
    ASSERT_EQ(groups[i].sub_batches.at(0).size(), 2);
    EXPECT_EQ(groups[i].sub_batches[0][0].shape,
              BatchShape::decode(static_cast<std::int64_t>(i), i == 1 ? 5 : 6));
    EXPECT_EQ(groups[i].sub_batches[0][1].shape, BatchShape::prefill(1, 4));
  }
  EXPECT_EQ(groups[3].phase, Phase::decode);
  // Of five tokens the first request has drawn three, the last one one.
  EXPECT_EQ(groups[3].count, 2);
  EXPECT_EQ(groups[3].sub_batches[0][0].shape, BatchShape::decode(3, 7));  // 7, 6, 5, then more
  EXPECT_EQ(groups[4].count, 1);
  EXPECT_EQ(groups[4].sub_batches[0][0].shape, BatchShape::decode(2, 8));
  EXPECT_EQ(groups[5].count, 1);
  EXPECT_EQ(groups[5].sub_batches[0][0].shape, BatchShape::decode(1, 8));
  // Seconds 1, 2, 4 for the prompts, then 8 twice, 16, 32: from each one's first token to its last.
  const double sum_s = (2 + 4 + 16) + (4 + 16 + 16) + (16 + 16 + 32);
  EXPECT_DOUBLE_EQ(per_token_s(rehearsal, {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {16, 0}, {32, 0}}),
                   sum_s / 3 / 4);
}

/// Requests with KV in HBM and others take turns, as NEO's do where nothing hides the CPU's work.
TEST_F(RehearsalTest, WhoWaitsHasTurnsOfItsOwn) {
  chooser_.choose = [](const std::vector<RequestView>& requests) {
    Chooser::Ids ids;
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left > 0) return Chooser::Choice{ids_of(requests)};
      if (request.kv == Tier::hbm) ids.push_back(request.id);
    }
    return Chooser::Choice{ids.empty() ? ids_of(requests) : ids};
  };
  MemoryPlan memory = in_ddr();
  memory.hbm_requests = 2;
  const Rehearsal rehearsal =
      rehearse({.batch = 5, .input_tokens = 16, .output_tokens = 9}, memory);
  ASSERT_EQ(rehearsal.groups().size(), 3);
  const AlikeIterations& prompts = rehearsal.groups()[0];
  ASSERT_EQ(prompts.sub_batches.at(0).size(), 2);
  EXPECT_EQ(prompts.sub_batches[0][0].kv, Tier::hbm);
  EXPECT_EQ(prompts.sub_batches[0][1].kv, std::nullopt);
  EXPECT_EQ(prompts.sub_batches[0][1].shape, BatchShape::prefill(3, 16));
  EXPECT_EQ(rehearsal.groups()[1].count, 8);
  EXPECT_EQ(rehearsal.groups()[1].sub_batches.at(0).at(0).shape.batch, 2);
  EXPECT_EQ(rehearsal.groups()[2].count, 8);
  EXPECT_EQ(rehearsal.groups()[2].sub_batches.at(0).at(0).shape.batch, 3);
  EXPECT_EQ(rehearsal.groups()[2].sub_batches.at(0).at(0).kv, std::nullopt);
  // The three also wait for the two.
  EXPECT_DOUBLE_EQ(per_token_s(rehearsal, {{1, 0}, {1, 0}, {10, 0}}),
                   (2 * 8 + 3 * (8 + 80)) / 5.0 / 8);
}

TEST_F(RehearsalTest, SubBatchesStayApart) {
  chooser_.choose = [](const std::vector<RequestView>& requests) {
    Chooser::Ids all = ids_of(requests);
    return Chooser::Choice{Chooser::Ids(all.begin(), all.begin() + 1),
                           Chooser::Ids(all.begin() + 1, all.end())};
  };
  const Rehearsal rehearsal = rehearse({.batch = 4, .input_tokens = 2, .output_tokens = 3});
  ASSERT_EQ(rehearsal.groups().size(), 2);
  for (const AlikeIterations& alike : rehearsal.groups()) {
    ASSERT_EQ(alike.sub_batches.size(), 2);
    EXPECT_EQ(alike.sub_batches[0].at(0).shape.batch, 1);
    EXPECT_EQ(alike.sub_batches[1].at(0).shape.batch, 3);
  }
}

/// 40 requests that decode one fewer each time: about as many are estimated together.
TEST_F(RehearsalTest, ABitMoreOrFewerIsAlike) {
  int fewer = 0;
  chooser_.choose = [&](const std::vector<RequestView>& requests) {
    Chooser::Ids ids = ids_of(requests);
    if (requests.front().prompt_tokens_left == 0 && ids.size() == 40) ids.resize(40 - fewer++);
    return Chooser::Choice{ids};
  };
  const Rehearsal rehearsal = rehearse({.batch = 40, .input_tokens = 2, .output_tokens = 4});
  double tokens = 0;
  for (const AlikeIterations& alike : rehearsal.groups()) {
    if (alike.phase == Phase::decode)
      tokens += static_cast<double>(alike.count * alike.sub_batches[0][0].shape.batch);
  }
  EXPECT_NEAR(tokens, 40 * 3, 2);
  EXPECT_EQ(rehearsal.groups()[1].count, 3);  // 40, 39 and 38
  EXPECT_EQ(rehearsal.groups()[1].sub_batches[0][0].shape.batch, 39);
}

/// The engine asks before the results of the iteration before are there.
TEST_F(RehearsalTest, APolicyMayWaitForAnIteration) {
  bool waits = true;
  chooser_.choose = [&](const auto& requests) {
    waits = !waits;
    return waits ? Chooser::Choice() : Chooser::Choice{ids_of(requests)};
  };
  const Rehearsal rehearsal = rehearse({.batch = 3, .input_tokens = 6, .output_tokens = 5});
  ASSERT_EQ(rehearsal.groups().size(), 2);
  EXPECT_EQ(rehearsal.groups()[1].count, 4);
  EXPECT_EQ(chooser_.times_asked, 9);
}

TEST_F(RehearsalTest, SomeoneMustRun) {
  chooser_.choose = [](const auto&) { return Chooser::Choice(); };
  EXPECT_THROW(rehearse({.batch = 3, .input_tokens = 6, .output_tokens = 2}), Error);
}

}  // namespace
}  // namespace sluice
