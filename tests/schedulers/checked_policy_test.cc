#include "schedulers/checked_policy.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "perfmodels/hot_experts.h"
#include "tests/schedulers/policy_costs.h"

namespace sluice {
namespace {

using test::PolicyCosts;

/// Answers what a test gives it.
class Puppet : public Policy {
 public:
  MemoryPlan plan_memory() override { return memory; }
  Pipeline pipeline(Phase /*phase*/) override {
    return {
        .mini_batches = mini_batches, .prefetch = prefetch, .requests_at_once = requests_at_once};
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& /*homes*/) override {
    return placement;
  }
  IterationPlan plan_iteration(const std::vector<RequestView>& /*requests*/) override {
    return iteration;
  }
  std::optional<Schedule> schedule(const Situation& /*situation*/) override { return orders; }

  MemoryPlan memory{.layers = std::vector<LayerHomes>(2, LayerHomes::all(Tier::ddr, Tier::ddr))};
  std::int64_t mini_batches = 1;
  Prefetch prefetch = Prefetch::layer;
  std::int64_t requests_at_once = 0;
  Placement placement{Device::cpu};
  IterationPlan iteration;
  std::optional<Schedule> orders;
};

class CheckedPolicyTest : public testing::Test {
 protected:
  CheckedPolicyTest() {
    checked_.start(costs_, {.batch = 2, .input_tokens = 8, .output_tokens = 8});
  }

  template <typename Call>
  void expect_error(const Call& call, const std::vector<std::string>& parts) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("policy puppet: ")) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
    }
  }
  void expect_memory_error(const std::vector<std::string>& parts) {
    expect_error([&] { checked_.plan_memory(); }, parts);
  }
  void expect_iteration_error(const std::vector<std::string>& parts) {
    expect_error([&] { checked_.plan_iteration({{.id = 1}, {.id = 2}}); }, parts);
  }

  PolicyCosts costs_;
  Puppet puppet_;
  CheckedPolicy checked_{puppet_, "puppet"};
};

TEST_F(CheckedPolicyTest, LetsAPossibleMemoryPlanThrough) {
  puppet_.memory.layers[0].kv = Tier::ddr;
  EXPECT_EQ(checked_.plan_memory().layers, puppet_.memory.layers);
}

TEST_F(CheckedPolicyTest, RefusesHomesForOtherLayers) {
  puppet_.memory.layers.resize(3);
  expect_memory_error({"plan_memory", "3 layers", "has 2"});
}

TEST_F(CheckedPolicyTest, RefusesATierThatTheMachineLacks) {
  puppet_.memory.layers[1][WeightKind::fc2] = Tier::hbm;
  expect_memory_error({"layer 1's fc2 ", "hbm", "it has ddr"});
  puppet_.memory.layers[1][WeightKind::fc2] = Tier::ddr;
  puppet_.memory.layers[0].kv = Tier::cxl;
  expect_memory_error({"layer 0's KV", "cxl"});
  puppet_.memory.layers[0].kv = Tier::ddr;
  puppet_.memory.lm_head = Tier::disk;
  expect_memory_error({"LM head", "disk"});
}

TEST_F(CheckedPolicyTest, RefusesATierThatIsNone) {
  puppet_.memory.embedding = static_cast<Tier>(9);
  expect_memory_error({"the embedding", "tier 9", "no Tier"});
}

TEST_F(CheckedPolicyTest, RefusesHotExpertsThatCannotBe) {
  puppet_.memory.hot_experts = {{0}, {1}};
  expect_memory_error({"plan_memory", "hot_experts", "no experts"});
  costs_.cut_into_experts(4);
  expect_memory_error({"hot_experts", "no hbm"});
  costs_.has_gpu = true;
  costs_.capacities[Tier::hbm] = 1 << 20;
  EXPECT_EQ(checked_.plan_memory().layers[1].hot->count(), 1);
  puppet_.memory.hot_experts = {{0}, {1, 3, 1}};
  expect_memory_error({"layer 1", "expert 1 twice"});
  puppet_.memory.hot_experts = {{4}, {1}};
  expect_memory_error({"layer 0", "expert 4", "0 to 3"});
  puppet_.memory.hot_experts = {{-1}, {1}};
  expect_memory_error({"layer 0", "expert -1"});
  puppet_.memory.hot_experts = {{0}};
  expect_memory_error({"of 1 layers", "has 2"});
  puppet_.memory.hot_experts = {{0}, {1}};
  puppet_.memory.uses_gpu = false;
  expect_memory_error({"uses_gpu is false"});
}

TEST_F(CheckedPolicyTest, RefusesMoreThanATierHolds) {
  // Two layers of about 114 kB each, and a head of 128 kB.
  costs_.capacities = {{Tier::ddr, 1 << 30}, {Tier::hbm, 64 << 10}};
  puppet_.memory.layers[0] = LayerHomes::all(Tier::hbm, Tier::ddr);
  expect_memory_error({"of hbm (weights", "which holds 64.0 KiB", "weights alone are too many"});
  costs_.capacities[Tier::hbm] = 256 << 10;
  EXPECT_NO_THROW(checked_.plan_memory());
}

TEST_F(CheckedPolicyTest, CountsTheKvOfTheWholeWorkload) {
  // A token's KV takes 256 bytes a layer: 2 x 16 tokens x 2 layers of it are 16 KiB.
  costs_.capacities = {{Tier::ddr, 1 << 30}, {Tier::hbm, 16 << 10}};
  for (LayerHomes& homes : puppet_.memory.layers) homes.kv = Tier::hbm;
  EXPECT_NO_THROW(checked_.plan_memory());
  costs_.capacities[Tier::hbm] -= 1;
  expect_memory_error({"of hbm", "KV 16.0 KiB"});
}

TEST_F(CheckedPolicyTest, MovesHostWeightsToTheTierThatIsAskedFor) {
  costs_.capacities = {{Tier::hbm, 1 << 30}, {Tier::ddr, 1 << 30}, {Tier::cxl, 1 << 30}};
  puppet_.memory.layers[0] = LayerHomes::all(Tier::hbm, Tier::hbm);
  checked_.set_host_tiers({.parameters = Tier::cxl, .kv = {}});
  const MemoryPlan plan = checked_.plan_memory();
  EXPECT_EQ(plan.layers[0], LayerHomes::all(Tier::hbm, Tier::hbm));
  EXPECT_EQ(plan.layers[1], LayerHomes::all(Tier::cxl, Tier::ddr));
  EXPECT_EQ(plan.embedding, Tier::ddr);
  puppet_.memory.layers[1] = LayerHomes::all(Tier::cxl, Tier::ddr);
  checked_.set_host_tiers({.parameters = Tier::ddr, .kv = {}});
  EXPECT_EQ(checked_.plan_memory().layers[1], LayerHomes::all(Tier::ddr, Tier::ddr));
  checked_.set_host_tiers({});
  EXPECT_EQ(checked_.plan_memory().layers, puppet_.memory.layers);
}

TEST_F(CheckedPolicyTest, MovesKvOfTheHostToTheTierThatIsAskedFor) {
  costs_.capacities = {{Tier::hbm, 1 << 30}, {Tier::ddr, 1 << 30}, {Tier::cxl, 1 << 30}};
  puppet_.memory.layers[0] = LayerHomes::all(Tier::ddr, Tier::hbm);
  checked_.set_host_tiers({.parameters = {}, .kv = Tier::cxl});
  const MemoryPlan plan = checked_.plan_memory();
  EXPECT_EQ(plan.layers[0], LayerHomes::all(Tier::ddr, Tier::hbm));
  EXPECT_EQ(plan.layers[1], LayerHomes::all(Tier::ddr, Tier::cxl));
  puppet_.memory.layers[1] = LayerHomes::all(Tier::ddr, Tier::cxl);
  checked_.set_host_tiers({.parameters = {}, .kv = Tier::ddr});
  EXPECT_EQ(checked_.plan_memory().layers[1], LayerHomes::all(Tier::ddr, Tier::ddr));
}

TEST_F(CheckedPolicyTest, AHostTierThatTheMachineLacksIsTheUsersMistake) {
  const auto complaint = [&](HostTiers tiers) -> std::string {
    checked_.set_host_tiers(tiers);
    try {
      checked_.plan_memory();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(complaint({.parameters = Tier::cxl, .kv = {}}),
            "--parameters-tier cxl: the machine has no such memory (it has ddr); take another "
            "--machine, or add tiers.cxl to its profile");
  EXPECT_EQ(
      complaint({.parameters = {}, .kv = Tier::cxl}),
      "--kv-tier cxl: the machine has no such memory (it has ddr); take another --machine, or "
      "add tiers.cxl to its profile");
  EXPECT_EQ(
      complaint({.parameters = {}, .kv = Tier::disk}),
      "--kv-tier disk: the machine has no such memory (it has ddr); take another --machine, or "
      "add tiers.disk to its profile");
}

TEST_F(CheckedPolicyTest, SendsWorkForAMissingDeviceToTheOther) {
  puppet_.placement = Placement(Device::cpu);
  EXPECT_EQ(checked_.place(0, {}, {}), Placement(Device::cpu));
  EXPECT_FALSE(checked_.lacked_device());
  puppet_.placement = *Placement::parse("011000");
  EXPECT_EQ(checked_.place(0, {}, {}), Placement(Device::cpu));
  EXPECT_TRUE(checked_.lacked_device());
}

TEST_F(CheckedPolicyTest, LeavesPlacementsOnDevicesThatExist) {
  costs_.has_gpu = true;
  puppet_.placement = *Placement::parse("011000");
  EXPECT_EQ(checked_.place(0, {}, {}), puppet_.placement);
  EXPECT_FALSE(checked_.lacked_device());
}

TEST_F(CheckedPolicyTest, RefusesImpossibleMiniBatches) {
  EXPECT_NO_THROW(checked_.pipeline(Phase::decode));
  for (const std::int64_t count : {-1, 0, 3}) {
    puppet_.mini_batches = count;
    expect_error([&] { checked_.pipeline(Phase::decode); }, {"pipeline", "batch of 2", "1 to 2"});
  }
}

TEST_F(CheckedPolicyTest, RefusesAPrefetchThatIsNone) {
  puppet_.prefetch = static_cast<Prefetch>(7);
  expect_error([&] { checked_.pipeline(Phase::decode); }, {"pipeline", "prefetch is 7"});
  expect_memory_error({"pipeline", "prefetch is 7"});
}

TEST_F(CheckedPolicyTest, RefusesAPipelineThatChangesBehindThePlan) {
  checked_.plan_memory();
  EXPECT_NO_THROW(checked_.pipeline(Phase::prefill));
  puppet_.mini_batches = 2;
  expect_error([&] { checked_.pipeline(Phase::prefill); },
               {"pipeline", "prefill", "2 mini-batches after 1"});
  checked_.plan_memory();
  EXPECT_EQ(checked_.pipeline(Phase::prefill).mini_batches, 2);
  puppet_.prefetch = Prefetch::none;
  // Asked ahead of an iteration, it is pipeline()'s mistake all the same.
  expect_iteration_error({"puppet: pipeline: ", "prefill", "prefetch 0 after 2"});
  puppet_.prefetch = Prefetch::layer;
  puppet_.requests_at_once = 1;
  expect_iteration_error({"puppet: pipeline: ", "requests_at_once 1 after 0"});
}

TEST_F(CheckedPolicyTest, RefusesANegativeNumberOfRequestsInHbm) {
  puppet_.memory.hbm_requests = -3;
  expect_memory_error({"plan_memory", "hbm_requests is -3"});
}

TEST_F(CheckedPolicyTest, RefusesADeviceThatIsNone) {
  puppet_.placement[Sublayer::fc1] = static_cast<Device>(5);
  expect_error([&] { checked_.place(1, {}, {}); }, {"place", "layer 1's fc1", "device 5"});
}

TEST_F(CheckedPolicyTest, RefusesADeviceThatIsNoneForTheHead) {
  puppet_.memory.lm_head_device = static_cast<Device>(9);
  expect_memory_error({"plan_memory", "the LM head", "device 9"});
}

TEST_F(CheckedPolicyTest, SendsTheHeadToTheDeviceThatIsThere) {
  puppet_.memory.lm_head_device = Device::gpu;
  EXPECT_EQ(checked_.plan_memory().lm_head_device, Device::cpu);
  EXPECT_TRUE(checked_.lacked_device());
}

TEST_F(CheckedPolicyTest, RefusesTheGpuBehindAPlanThatDoesNotUseIt) {
  puppet_.memory.uses_gpu = false;
  puppet_.placement = Placement(Device::gpu);
  checked_.plan_memory();
  EXPECT_EQ(checked_.place(0, {}, {}), Placement(Device::cpu));  // there is none anyway
  costs_.has_gpu = true;
  costs_.capacities[Tier::hbm] = 1 << 30;
  checked_.plan_memory();
  expect_error([&] { checked_.place(1, {}, {}); },
               {"place", "layer 1's qkv", "GPU", "uses_gpu is false"});
  puppet_.memory.lm_head_device = Device::gpu;
  expect_memory_error({"the LM head", "uses_gpu is false"});
  puppet_.memory.lm_head_device.reset();
  puppet_.memory.embedding = Tier::hbm;
  expect_memory_error({"the embedding", "hbm", "uses_gpu is false"});
}

TEST_F(CheckedPolicyTest, RefusesRequestsInHbmWhereThereIsNone) {
  puppet_.memory.hbm_requests = 1;
  expect_memory_error({"plan_memory", "hbm_requests is 1", "no hbm", "it has ddr"});
}

TEST_F(CheckedPolicyTest, QuotesDigitsThatAreNoPlacement) {
  class Typist : public Policy {
    Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                    const LayerHomes& /*homes*/) override {
      return *Placement::parse("0110");
    }
  } typist;
  CheckedPolicy checked(typist, "puppet");
  checked.start(costs_, {.batch = 2, .input_tokens = 8, .output_tokens = 8});
  expect_error([&] { checked.place(0, {}, {}); }, {"place", "\"0110\"", "six digits"});
  EXPECT_FALSE(Placement::parse("0110"));
}

/// A policy whose place() throws whatever it is given.
template <typename Thrown>
std::string words_for(Thrown thrown, const CostModel& costs) {
  class Thrower : public Policy {
   public:
    explicit Thrower(Thrown its) : thrown_(std::move(its)) {}
    Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                    const LayerHomes& /*homes*/) override {
      throw thrown_;
    }

   private:
    Thrown thrown_;
  } thrower(std::move(thrown));
  CheckedPolicy checked(thrower, "thrower");
  checked.start(costs, {.batch = 2, .input_tokens = 8, .output_tokens = 8});
  try {
    checked.place(0, {}, {});
  } catch (const UsageError& error) {
    return std::string("the user's mistake: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(CheckedPolicyTest, WhateverIsThrownIsALineThatNamesTheCall) {
  class Speechless : public std::exception {
    const char* what() const noexcept override { return nullptr; }
  };
  const auto line_of = [](const std::string& words) {
    return "policy thrower: place: " + words +
           "; correct the policy, or take another with --policy";
  };
  EXPECT_EQ(words_for(std::runtime_error("one\ntwo\x1b[1m"), costs_), line_of("one two\\x1b[1m"));
  EXPECT_EQ(words_for(UsageError("three {}", 4), costs_), line_of("three 4"));
  for (const std::string& words :
       {words_for(std::runtime_error(""), costs_), words_for(Speechless(), costs_)})
    EXPECT_EQ(words, line_of("it threw an exception without a text"));
  for (const std::string& words :
       {words_for(42, costs_), words_for(std::string("five"), costs_), words_for("six", costs_)})
    EXPECT_EQ(words, line_of("it threw something that is no std::exception"));
}

/// A policy that starts once only, or never.
class Forgetful : public Policy {
 public:
  explicit Forgetful(int starts) : starts_(starts) {}
  void start(const CostModel& costs, const Workload& workload) override {
    if (starts_-- > 0) Policy::start(costs, workload);
  }

 private:
  int starts_;
};

TEST_F(CheckedPolicyTest, SaysThatAStartOfItsOwnHasToCallPolicys) {
  Forgetful never(0);
  Forgetful once(1);
  const Workload workload = {.batch = 2, .input_tokens = 8, .output_tokens = 8};
  for (Forgetful* policy : {&never, &once}) {
    CheckedPolicy checked(*policy, "puppet");
    checked.start(costs_, workload);
    if (policy == &once) {
      checked.plan_memory();
      checked.start(costs_, workload);
    }
    expect_error([&] { checked.plan_memory(); }, {"plan_memory", "Policy::start()"});
  }
}

TEST(CheckedPolicyDeathTest, ACrashIsALineThatNamesTheCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  class Crashing : public Policy {
   public:
    Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                    const LayerHomes& /*homes*/) override {
      std::abort();
    }
    IterationPlan plan_iteration(const std::vector<RequestView>& /*requests*/) override {
      raise(SIGSEGV);
      return {};
    }
  } crashing;
  PolicyCosts costs;
  CheckedPolicy checked(crashing, "crashing");
  checked.start(costs, {.batch = 2, .input_tokens = 8, .output_tokens = 8});
  EXPECT_EXIT(checked.place(0, {}, {}), ::testing::ExitedWithCode(1),
              "sluice: policy crashing: place: it crashed; correct the policy");
  EXPECT_EXIT(checked.plan_iteration({{.id = 1}}), ::testing::ExitedWithCode(1),
              "sluice: policy crashing: plan_iteration: it crashed; ");
  // Outside of the policy's calls it is not the policy's fault.
  EXPECT_EXIT(std::abort(), ::testing::KilledBySignal(SIGABRT), "");
}

TEST_F(CheckedPolicyTest, TellsNobodyToCorrectAPolicyThatIsOurs) {
  puppet_.memory.hbm_requests = -1;
  expect_memory_error({"correct the policy"});
  CheckedPolicy shipped(puppet_, "puppet", PolicyOrigin::shipped);
  shipped.start(costs_, {.batch = 2, .input_tokens = 8, .output_tokens = 8});
  try {
    shipped.plan_memory();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("correct"), std::string::npos) << error.what();
  }
}

TEST_F(CheckedPolicyTest, LetsRequestsWaitForWhatIsUnderWay) {
  puppet_.iteration = {.sub_batches = {{{2}}}};
  EXPECT_EQ(checked_.plan_iteration({{.id = 1}, {.id = 2}}).sub_batches.size(), 1U);
  puppet_.iteration = {};
  EXPECT_TRUE(checked_.plan_iteration({{.id = 1}}, Awaited::an_iteration).sub_batches.empty());
  expect_iteration_error({"plan_iteration", "runs none of 2 requests"});
}

TEST_F(CheckedPolicyTest, RefusesRequestsThatItWasNotGiven) {
  puppet_.iteration = {.sub_batches = {{{1}}, {{2, 3}}}};
  expect_iteration_error({"plan_iteration", "sub-batch 1", "request 3", "none of the 2"});
}

TEST_F(CheckedPolicyTest, RefusesARequestThatComesTwice) {
  puppet_.iteration = {.sub_batches = {{{1, 2}}, {{1}}}};
  expect_iteration_error({"request 1", "twice"});
}

TEST_F(CheckedPolicyTest, RefusesMorePromptsThanItsPipelineSays) {
  puppet_.requests_at_once = 1;
  puppet_.iteration = {.sub_batches = {{{1}}, {{2}}}};
  const RequestView prompt = {.id = 1, .prompt_tokens_left = 5};
  checked_.plan_iteration({prompt, {.id = 2}});
  expect_error(
      [&] {
        checked_.plan_iteration({prompt, {.id = 2, .prompt_tokens_left = 3}});
      },
      {"plan_iteration", "2 requests of prefill", "says 1 at once"});
  // Of those that decode, too.
  expect_iteration_error({"2 requests of decode", "says 1 at once"});
}

/// Requests 1 and 2 decode, in HBM and in DDR; 3 is a prompt of 40 tokens that has begun; 4 was
/// given up, and computes drawn tokens anew; 5 and 6 wait.
Situation some_situation() {
  Situation now;
  now.running = {{.id = 1, .context_tokens = 20, .kv = Tier::hbm, .pages = 2},
                 {.id = 2, .context_tokens = 20, .kv = Tier::ddr, .pages = 2},
                 {.id = 3, .prompt_tokens_left = 40, .kv = Tier::hbm, .pages = 3},
                 {.id = 4,
                  .prompt_tokens_left = 12,
                  .context_tokens = 20,
                  .kv = Tier::ddr,
                  .drawn_tokens_left = 12,
                  .pages = 3}};
  now.waiting = {{.id = 5, .prompt_tokens_left = 9, .pages = 1},
                 {.id = 6, .prompt_tokens_left = 9, .pages = 1}};
  now.pools = {{.tier = Tier::hbm, .pages = 9, .free_pages = 4},
               {.tier = Tier::ddr, .pages = 9, .free_pages = 4}};
  now.free_sequences = 1;
  now.max_batch_tokens = 44;
  now.prefill_chunk_tokens = 40;
  now.max_skips = 16;
  return now;
}

Schedule one_sub_batch(std::vector<Share> shares) {
  Schedule schedule;
  schedule.sub_batches = {std::move(shares)};
  return schedule;
}

TEST_F(CheckedPolicyTest, LetsAPossibleScheduleThrough) {
  EXPECT_FALSE(checked_.schedule(some_situation()));
  puppet_.orders = Schedule{.preemptions = {3},
                            .swaps = {{1, Tier::ddr}, {2, Tier::hbm}},
                            .admissions = {{6, Tier::ddr}, {5, Tier::hbm}},
                            .sub_batches = {{{5, 9}, {2, 1}}, {{4, 7}, {1, 1}}}};
  EXPECT_EQ(checked_.schedule(some_situation()), puppet_.orders);
  for (const std::int64_t rows : {8, 20, 32, 40}) {
    puppet_.orders = one_sub_batch({{3, rows}});
    EXPECT_EQ(checked_.schedule(some_situation()), puppet_.orders) << rows;
  }
  puppet_.orders = Schedule{};
  Situation now = some_situation();
  now.under_way = true;
  EXPECT_EQ(checked_.schedule(now), puppet_.orders);
}

TEST_F(CheckedPolicyTest, RefusesAnImpossibleSchedule) {
  struct Case {
    Schedule orders;
    std::vector<std::string> parts;
  };
  const auto preempting = [](std::vector<std::int64_t> ids, Schedule schedule = {}) {
    schedule.preemptions = std::move(ids);
    return schedule;
  };
  const auto swapping = [](std::vector<Swap> swaps, Schedule schedule = {}) {
    schedule.swaps = std::move(swaps);
    return schedule;
  };
  const auto admitting = [](std::vector<Admission> admissions, Schedule schedule = {}) {
    schedule.admissions = std::move(admissions);
    return schedule;
  };
  const Schedule two_runs = one_sub_batch({{2, 1}});
  std::vector<Case> cases = {
      // Ids.
      {preempting({7}, two_runs), {"preempts request 7", "none of the 6"}},
      {swapping({{-1, Tier::ddr}}, two_runs), {"swaps request -1", "none of the 6"}},
      {admitting({{9, Tier::ddr}}, two_runs), {"admits request 9", "none of the 6"}},
      {one_sub_batch({{8, 1}}), {"runs request 8", "none of the 6"}},
      {one_sub_batch({{2, 1}, {1, 1}, {2, 1}}), {"request 2", "twice", "once an iteration"}},
      {preempting({1, 1}, two_runs), {"preempts request 1"}},
      {swapping({{1, Tier::ddr}, {1, Tier::hbm}}, two_runs), {"request 1 twice", "once"}},
      {admitting({{5, Tier::ddr}, {5, Tier::ddr}}, preempting({3}, two_runs)),
       {"admits request 5, which does not wait"}},
      // Who runs, and who waits.
      {admitting({{1, Tier::ddr}}, two_runs), {"admits request 1, which does not wait"}},
      {preempting({5}, two_runs), {"preempts request 5, which waits"}},
      {swapping({{5, Tier::ddr}}, two_runs), {"swaps request 5, which waits"}},
      {one_sub_batch({{5, 9}}), {"runs request 5, which waits"}},
      {preempting({2}, two_runs), {"runs request 2, and preempts it"}},
      {preempting({1}, swapping({{1, Tier::ddr}}, two_runs)), {"swaps request 1, and preempts it"}},
      {preempting({1}, admitting({{1, Tier::ddr}}, two_runs)),
       {"admits request 1, which does not wait"}},
      {admitting({{5, Tier::hbm}, {6, Tier::hbm}}, two_runs), {"admits 2 requests", "1 more"}},
      // Tiers.
      {swapping({{1, Tier::hbm}}, two_runs), {"swaps request 1 to hbm, where it is"}},
      {swapping({{1, Tier::cxl}}, two_runs), {"request 1 to cxl", "one in hbm and ddr"}},
      {swapping({{1, static_cast<Tier>(9)}}, two_runs), {"request 1 to tier 9", "hbm and ddr"}},
      {admitting({{5, Tier::disk}}, two_runs), {"request 5 to disk", "one in hbm and ddr"}},
      // Rows.
      {one_sub_batch({{1, 0}}), {"request 1", "0 rows", "possible are 1;"}},
      {one_sub_batch({{1, 2}}), {"request 1", "2 rows", "possible are 1;"}},
      {one_sub_batch({{3, -4}}), {"request 3", "-4 rows", "possible are 8 to 32, or 40;"}},
      {one_sub_batch({{3, 7}}), {"request 3", "7 rows", "possible are 8 to 32, or 40;"}},
      {one_sub_batch({{3, 33}}), {"request 3", "33 rows", "possible are 8 to 32, or 40;"}},
      {one_sub_batch({{3, 41}}), {"request 3", "41 rows", "possible are 8 to 32, or 40;"}},
      {one_sub_batch({{4, 8}}), {"request 4", "8 rows", "possible are 1 to 7;"}},
      {admitting({{5, Tier::hbm}}, one_sub_batch({{5, 8}})),
       {"request 5", "8 rows", "possible are 9;"}},
      {one_sub_batch({{3, 40}, {4, 7}}), {"47 rows", "44 are possible"}},
      // Nothing.
      {Schedule{}, {"none of 6 requests", "nothing else is under way"}}};
  Schedule with_empty = two_runs;
  with_empty.sub_batches.emplace_back();
  cases.push_back({with_empty, {"sub-batch 1 is empty"}});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    puppet_.orders = cases[i].orders;
    std::vector<std::string> parts = cases[i].parts;
    parts.emplace_back("puppet: schedule: ");
    parts.emplace_back("correct the policy");
    expect_error([&] { checked_.schedule(some_situation()); }, parts);
  }
}

TEST_F(CheckedPolicyTest, RefusesAnEmptySubBatch) {
  puppet_.iteration = {.sub_batches = {{{1}}, {{}}}};
  expect_iteration_error({"sub-batch 1 is empty"});
}

}  // namespace
}  // namespace sluice
