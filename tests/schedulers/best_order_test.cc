// The search for the best order, by hand and against all orders.
#include "tests/schedulers/best_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::test {
namespace {

/// Chains of so many layers that do nothing.
IterationWork nothing(std::size_t num_chains, std::size_t num_layers) {
  IterationWork work;
  work.layers.assign(num_chains, std::vector<ChainLayer>(num_layers));
  work.loads.assign(num_layers, {});
  work.heads.assign(num_chains, {});
  work.swaps.assign(num_chains, {});
  return work;
}

ChainStep step(Device device, double compute_s, double values_s = 0) {
  ChainStep step;
  step.device = device;
  step.compute_s = compute_s;
  step.values_s = values_s;
  return step;
}

/// One chain that computes on the GPU for so long a layer, behind weights that take so long each.
IterationWork streamed(double compute_s, const std::vector<double>& loads_s) {
  IterationWork work = nothing(1, loads_s.size());
  for (std::size_t layer = 0; layer < loads_s.size(); ++layer) {
    work.layers[0][layer][0] = step(Device::gpu, compute_s);
    work.loads[layer][0].link_s[0] = loads_s[layer];
  }
  return work;
}

TEST(BestOrderTest, OneChainIsALineBehindItsLoads) {
  IterationWork work = streamed(2, {5, 5, 5});
  work.heads[0] = {.device = Device::gpu, .load_s = 0, .compute_s = 1};
  // Loads end at 5, 10 and (the third follows the first layer's end at 7) 15; then 2 and the head.
  EXPECT_NEAR(best_order_s(work), 18, 1e-9);
  EXPECT_NEAR(order_bound_s(work), 18, 1e-9);
}

TEST(BestOrderTest, ThirdLoadWaitsForTheFirstLayer) {
  // 5 + 10: the second one has its weights; the third's come from 15 to 20.
  EXPECT_NEAR(best_order_s(streamed(10, {5, 5, 5})), 35, 1e-9);
  // The third load may begin at 2, when layer 1 is done.
  EXPECT_NEAR(best_order_s(streamed(1, {1, 0, 20})), 23, 1e-9);
}

TEST(BestOrderTest, TheLongTailGoesFirst) {
  // Both need the GPU for 1 at once; the second has 9 on the CPU behind it. First come, first
  // served ends at 11.
  IterationWork work = nothing(2, 1);
  work.layers[0][0][0] = step(Device::gpu, 1);
  work.layers[1][0][0] = step(Device::gpu, 1);
  work.layers[1][0][1] = step(Device::cpu, 9);
  EXPECT_NEAR(best_order_s(work), 10, 1e-9);
}

TEST(BestOrderTest, ADeviceMayWait) {
  // Chain 0 could take the GPU for 10 at once; better it waits 1 for chain 1, which has 10 behind.
  IterationWork work = nothing(2, 1);
  work.layers[0][0][0] = step(Device::gpu, 10);
  work.layers[1][0][0] = step(Device::cpu, 1);
  work.layers[1][0][1] = step(Device::gpu, 1);
  work.layers[1][0][2] = step(Device::cpu, 10);
  EXPECT_NEAR(best_order_s(work), 12, 1e-9);
}

TEST(BestOrderTest, AttentionBesideEndsBeforeSublayer4) {
  IterationWork work = nothing(1, 1);
  ChainLayer& layer = work.layers[0][0];
  layer[0] = step(Device::gpu, 1);
  layer[1] = step(Device::gpu, 2);
  layer[1].beside_s = 4;
  layer[1].beside_values_s = 3;
  layer[3] = step(Device::gpu, 5);
  // 1, then 3 + 4 beside 2, then 5.
  EXPECT_NEAR(best_order_s(work), 13, 1e-9);
}

TEST(BestOrderTest, StoresTakeWhatIsLeft) {
  IterationWork work = nothing(1, 1);
  ChainLayer& layer = work.layers[0][0];
  layer[0] = step(Device::gpu, 1);
  layer[0].store_s = 4;
  layer[0].store_to = Device::cpu;
  layer[1] = step(Device::cpu, 2, 3);
  layer[3] = step(Device::cpu, 1);
  // Values from 1 to 4, computation to 7; the store from 4 to 8.
  EXPECT_NEAR(best_order_s(work), 8, 1e-9);
}

TEST(BestOrderTest, WhatIsNotShorterIsNotFound) {
  IterationWork work = nothing(1, 1);
  work.layers[0][0][0] = step(Device::gpu, 3);
  EXPECT_NEAR(best_order_s(work, 3.1), 3, 1e-9);
  EXPECT_GT(best_order_s(work, 3), 1e300);
}

TEST(BestOrderTest, DisksAreRefused) {
  IterationWork work = nothing(1, 1);
  work.loads[0][0].disk_s = 1;
  EXPECT_THROW(best_order_s(work), std::runtime_error);
}

/// Two chains of two layers with tasks, values, stores and loads here and there.
IterationWork random_work(std::mt19937& random) {
  std::uniform_real_distribution<double> seconds(0.1, 3);
  std::uniform_int_distribution<int> die(0, 5);
  const auto device = [&] { return die(random) < 3 ? Device::gpu : Device::cpu; };
  IterationWork work = nothing(2, 2);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t d = 0; d < 2; ++d) {
      if (die(random) < 3) work.loads[layer][0].link_s[d] = seconds(random);
    }
    for (std::size_t chain = 0; chain < 2; ++chain) {
      ChainLayer& steps = work.layers[chain][layer];
      steps[0] = step(device(), seconds(random), die(random) < 2 ? seconds(random) : 0);
      if (die(random) < 2) {
        steps[0].store_s = seconds(random);
        steps[0].store_to = device();
      }
      steps[3] = step(device(), seconds(random), die(random) < 3 ? seconds(random) : 0);
    }
  }
  return work;
}

TEST(BestOrderTest, ChainsThatAreAlikeTakeTurns) {
  // Three mini-batches with 1 on the GPU, 2 over the link, 1 on the CPU: the link is busy from 1
  // to 7.
  IterationWork work = nothing(3, 1);
  for (auto& layers : work.layers) {
    layers[0][0] = step(Device::gpu, 1);
    layers[0][1] = step(Device::cpu, 1, 2);
  }
  EXPECT_NEAR(best_order_s(work), 8, 1e-9);
}

TEST(BestOrderTest, NoOrderIsMissed) {
  std::mt19937 random(11);
  for (int i = 0; i < 8; ++i) {
    IterationWork work = random_work(random);
    if (i % 2 == 1) work.layers[1] = work.layers[0];  // chains that are alike
    const double found = best_order_s(work);
    EXPECT_NEAR(found, best_order_s(work, std::numeric_limits<double>::infinity(), Pruning::off),
                1e-9);
    EXPECT_LE(order_bound_s(work), found * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace sluice::test
