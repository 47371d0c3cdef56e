#include "schedulers/policy.h"

#include <gtest/gtest.h>

#include "tests/schedulers/policy_costs.h"

namespace sluice {
namespace {

using test::PolicyCosts;

TEST(PolicyOptionsTest, KnowsWhatNobodyTook) {
  PolicyOptions options({{"depth", "3"}, {"width", "4"}});
  EXPECT_EQ(options.take("depth", "1"), "3");
  EXPECT_EQ(options.take("height", "7"), "7");
  EXPECT_EQ(options.unknown(), std::vector<std::string>{"width"});
  EXPECT_EQ(options.known(), (std::vector<std::string>{"depth", "height"}));
}

TEST(PolicyTest, KeepsEverythingInDdrByDefault) {
  const PolicyCosts costs;
  Policy policy;
  policy.start(costs, {});
  const MemoryPlan plan = policy.plan_memory();
  EXPECT_EQ(plan.layers, std::vector<LayerHomes>(2, LayerHomes::all(Tier::ddr, Tier::ddr)));
  EXPECT_EQ(plan.embedding, Tier::ddr);
  EXPECT_EQ(plan.lm_head, Tier::ddr);
}

TEST(PolicyTest, KeepsEverythingInHbmWithoutACpu) {
  PolicyCosts costs;
  costs.has_gpu = true;
  costs.has_cpu = false;
  Policy policy;
  policy.start(costs, {});
  EXPECT_EQ(policy.plan_memory().layers[1], LayerHomes::all(Tier::hbm, Tier::hbm));
}

TEST(PolicyTest, PlacesByCostAndAsksOnceForEqualLayers) {
  PolicyCosts costs;
  costs.has_gpu = true;
  Policy policy;
  policy.start(costs, {});
  const BatchShape shape = BatchShape::decode(1, 10);
  const LayerHomes homes = LayerHomes::all(Tier::hbm, Tier::hbm);
  EXPECT_EQ(policy.place(0, shape, homes), Placement(Device::gpu));
  const int asked = costs.num_asked;
  EXPECT_EQ(policy.place(1, shape, homes), Placement(Device::gpu));
  EXPECT_EQ(costs.num_asked, asked);
  policy.place(1, BatchShape::decode(1, 11), homes);
  EXPECT_GT(costs.num_asked, asked);
}

TEST(PolicyTest, RunsAllRequestsTogether) {
  Policy policy;
  const IterationPlan plan = policy.plan_iteration({{.id = 3}, {.id = 9}});
  ASSERT_EQ(plan.sub_batches.size(), 1U);
  EXPECT_EQ(plan.sub_batches[0].requests, (std::vector<std::int64_t>{3, 9}));
}

}  // namespace
}  // namespace sluice
