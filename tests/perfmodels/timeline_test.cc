#include "perfmodels/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "perfmodels/layer_cost.h"
#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

using test::ToyCosts;

constexpr double never = 1e30;

Placement placement(const char* digits) { return Placement::parse(digits).value(); }

MemoryPlan all_in(Tier weights, Tier kv, std::int64_t num_layers) {
  return {.layers = std::vector<LayerHomes>(static_cast<std::size_t>(num_layers),
                                            LayerHomes::all(weights, kv)),
          .lm_head = Tier::hbm};
}

std::vector<Chain> one_chain(const BatchShape& shape, const Placement& p, std::int64_t layers) {
  return {{.parts = {{.shape = shape}},
           .placements = std::vector<Placement>(static_cast<std::size_t>(layers), p)}};
}

/// What the task system takes is one second a task, whatever is in it.
class SecondATask : public ToyCosts {
 public:
  using ToyCosts::ToyCosts;
  double task_overhead_s(Device /*device*/, int /*num_sublayers*/) const override { return 1; }
};

/// One chain, the same placement in every layer.
IterationEstimate estimate(const ToyCosts& costs, const MemoryPlan& memory, const char* digits,
                           const BatchShape& shape, Prefetch prefetch, Start start) {
  const auto chains = one_chain(shape, placement(digits), costs.model().num_layers);
  return estimate_iteration(costs, memory, chains, prefetch, start);
}

/// A ToyCosts whose transfers take no time but where a test says.
ToyCosts without_transfers(std::int64_t num_layers) {
  ToyCosts costs(num_layers);
  for (auto& [way, rate] : costs.bytes_per_s) rate = never;
  return costs;
}

/// The last layer: from sublayer 4 on it has one row a sequence.
LayerCost last_layer_cost(const CostModel& costs, const Placement& p, BatchShape shape,
                          const LayerHomes& homes) {
  LayerCost cost = layer_cost(costs, p, shape, homes);
  shape.rows = 1;
  const LayerCost few = layer_cost(costs, p, shape, homes);
  std::copy(few.sublayers.begin() + 3, few.sublayers.end(), cost.sublayers.begin() + 3);
  return cost;
}

// ---- One chain by hand

TEST(TimelineTest, WithoutOverlapIsTheSumOfAllTerms) {
  ToyCosts costs(2);
  costs.head_s = {0.5, 7};
  for (const BatchShape& shape : {BatchShape::prefill(2, 3), BatchShape::decode(2, 3)}) {
    for (const Tier home : {Tier::ddr, Tier::hbm, Tier::cxl}) {
      for (unsigned bits = 0; bits < num_placements; ++bits) {
        const Placement p = Placement::from_bits(bits);
        const LayerHomes homes = LayerHomes::all(home, home);
        const double expected = layer_cost(costs, p, shape, homes).sum_s() +
                                last_layer_cost(costs, p, shape, homes).sum_s() + 0.5;
        for (const Start start : {Start::cold, Start::steady}) {
          const IterationEstimate found = estimate_iteration(
              costs, all_in(home, home, 2), one_chain(shape, p, 2), Prefetch::none, start);
          EXPECT_NEAR(found.seconds, expected, 1e-9)
              << p.to_string() << ' ' << to_string(home) << ' ' << to_string(shape.phase);
        }
      }
    }
  }
}

TEST(TimelineTest, BusyTimesAreOfTheEquations) {
  std::mt19937 random(3);
  ToyCosts costs = test::random_costs(random, 3);
  costs.head_s = {0, 0};
  for (const BatchShape& shape : {BatchShape::prefill(2, 3), BatchShape::decode(2, 3)}) {
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      const Placement p = Placement::from_bits(bits);
      const LayerHomes homes = LayerHomes::all(Tier::ddr, Tier::ddr);
      const LayerCost layer = layer_cost(costs, p, shape, homes);
      const LayerCost last = last_layer_cost(costs, p, shape, homes);
      const auto in_all = [](double each, double in_last) { return 2 * each + in_last; };
      for (const Prefetch prefetch : {Prefetch::none, Prefetch::half_layer, Prefetch::layer}) {
        const BusyTimes busy = estimate_iteration(costs, all_in(Tier::ddr, Tier::ddr, 3),
                                                  one_chain(shape, p, 3), prefetch, Start::steady)
                                   .busy;
        for (const Device device : {Device::cpu, Device::gpu}) {
          EXPECT_NEAR(device == Device::cpu ? busy.cpu_s : busy.gpu_s,
                      in_all(layer.compute_s(device), last.compute_s(device)), 1e-6)
              << p.to_string();
        }
        EXPECT_NEAR(busy.to_gpu_s + busy.to_cpu_s,
                    in_all(layer.load_s() + layer.store_s(), last.load_s() + last.store_s()), 1e-6)
            << p.to_string();
        EXPECT_EQ(busy.disk_s, 0);
      }
    }
  }
}

TEST(TimelineTest, StreamedLayersTakeTheLongerOfLoadAndComputation) {
  // A layer's 2400 bytes take 240 s to the GPU, KV stays in HBM. Computation 2.1 s or 420 s.
  ToyCosts costs(4);
  const MemoryPlan memory = all_in(Tier::ddr, Tier::hbm, 4);
  const BatchShape shape = BatchShape::decode(2, 3);
  EXPECT_NEAR(estimate(costs, memory, "000000", shape, Prefetch::layer, Start::steady).seconds,
              4 * 240, 1e-9);
  // Cold: the last layer's computation comes after all loads.
  EXPECT_NEAR(estimate(costs, memory, "000000", shape, Prefetch::layer, Start::cold).seconds,
              4 * 240 + 2.1, 1e-9);
  for (double& seconds : costs.gpu_s) seconds *= 200;
  EXPECT_NEAR(estimate(costs, memory, "000000", shape, Prefetch::layer, Start::steady).seconds,
              4 * 420, 1e-9);
  // Cold: the first layer's load comes before all computation.
  EXPECT_NEAR(estimate(costs, memory, "000000", shape, Prefetch::layer, Start::cold).seconds,
              240 + 4 * 420, 1e-9);
}

TEST(TimelineTest, HalfLayersFollowHelmListing1) {
  // Attention: 800 bytes, 80 s; FFN: 1600 bytes, 160 s. Computation of attention 10 c, of FFN 11 c.
  // Listing 1 loads j + 1 while j computes, then synchronises.
  const MemoryPlan memory = all_in(Tier::ddr, Tier::hbm, 3);
  for (const double c : {0.1, 5.0, 10.0, 20.0}) {
    ToyCosts costs(3);
    costs.gpu_s = {c, 2 * c, 3 * c, 4 * c, 5 * c, 6 * c};
    const double listing = 3 * (std::max(10 * c, 160.0) + std::max(11 * c, 80.0));
    EXPECT_NEAR(estimate(costs, memory, "000000", BatchShape::decode(2, 3), Prefetch::half_layer,
                         Start::steady)
                    .seconds,
                listing, 1e-9)
        << c;
  }
}

TEST(TimelineTest, ResidentLayersLoadNothing) {
  ToyCosts costs(3);
  const IterationEstimate all = estimate(costs, all_in(Tier::hbm, Tier::hbm, 3), "000000",
                                         BatchShape::decode(2, 3), Prefetch::layer, Start::steady);
  EXPECT_EQ(all.busy.to_gpu_s, 0);
  EXPECT_EQ(all.busy.to_cpu_s, 0);
  EXPECT_NEAR(all.seconds, 3 * 2.1, 1e-9);
  MemoryPlan one = all_in(Tier::ddr, Tier::hbm, 3);
  one.layers[1] = LayerHomes::all(Tier::hbm, Tier::hbm);
  EXPECT_EQ(one.resident_layers(), 1);
  const IterationEstimate two =
      estimate(costs, one, "000000", BatchShape::decode(2, 3), Prefetch::layer, Start::steady);
  EXPECT_NEAR(two.busy.to_gpu_s, 2 * 240, 1e-9);
}

TEST(TimelineTest, HeadRunsWhereItsWeightLivesOrIsSent) {
  ToyCosts costs(1);
  costs.head_s = {0.5, 7};
  MemoryPlan memory = all_in(Tier::hbm, Tier::hbm, 1);
  const BatchShape shape = BatchShape::decode(2, 3);
  const auto seconds = [&] {
    return estimate(costs, memory, "000000", shape, Prefetch::layer, Start::steady).seconds;
  };
  EXPECT_NEAR(seconds(), 2.1 + 0.5, 1e-9);
  memory.lm_head = Tier::ddr;
  EXPECT_NEAR(seconds(), 2.1 + 7, 1e-9);
  // 50 x 10 weights, 1000 bytes at 10 bytes/s.
  memory.lm_head_device = Device::gpu;
  EXPECT_NEAR(seconds(), 2.1 + 100 + 0.5, 1e-9);
}

TEST(TimelineTest, ValuesAndWeightsShareALink) {
  // Decode with attention on the CPU: 240 s of weights and 4 s of values to the GPU a layer.
  ToyCosts costs(4);
  const IterationEstimate found =
      estimate(costs, all_in(Tier::ddr, Tier::ddr, 4), "011000", BatchShape::decode(2, 3),
               Prefetch::layer, Start::steady);
  EXPECT_NEAR(found.busy.to_gpu_s, 4 * 244, 1e-9);
  EXPECT_GE(found.seconds, 4 * 244 - 1e-9);
  // The chain through a layer, from its weights' arrival: 1.6 s GPU, 5 s CPU, values 8 and 4 s: the
  // next layer's weights cross meanwhile but for the 4 s.
  EXPECT_NEAR(found.seconds, 4 * 244, 1e-9);
}

TEST(TimelineTest, ValuesHoldUpTheWeightsThatAreCrossing) {
  // A layer takes 0.1 s of QKV, 16 s and 8 s for K, V and Q to the CPU, 5 s there, 4 s for the
  // values back, 1.5 s. The first one has its weights at 240 s; its values cross back from 269.1 s
  // on, between the second one's weights, which are there at 484 s.
  ToyCosts costs(2);
  const IterationEstimate found = estimate(costs, all_in(Tier::ddr, Tier::ddr, 2), "011000",
                                           BatchShape::decode(2, 3), Prefetch::layer, Start::cold);
  EXPECT_NEAR(found.seconds, 240 + 244 + 34.6, 1e-9);
}

TEST(TimelineTest, ValuesWaitForTheTensorThatCrosses) {
  // As above, with 200 s of sublayer 4, so that the chain is what takes longest. The values of the
  // first layer are there at 269.1 s. Then QKV's weights of the second one cross, from 240 to 300
  // s.
  ToyCosts costs(2);
  costs.gpu_s[3] = 200;
  const IterationEstimate found = estimate(costs, all_in(Tier::ddr, Tier::ddr, 2), "011000",
                                           BatchShape::decode(2, 3), Prefetch::layer, Start::cold);
  const double first_layer_s = 300 + 4 + 200 + 0.5 + 0.6;
  EXPECT_NEAR(found.seconds, first_layer_s + 0.1 + 24 + 5 + 4 + 200 + 0.5 + 0.6, 1e-9);
}

TEST(TimelineTest, LayersThatLoadNothingHoldNoWeightsBack) {
  // The last layer's 240 s of weights cross from the start on, beside three layers of 2.1 s.
  ToyCosts costs(4);
  MemoryPlan memory = all_in(Tier::hbm, Tier::hbm, 4);
  memory.layers.back() = LayerHomes::all(Tier::ddr, Tier::hbm);
  const IterationEstimate found =
      estimate(costs, memory, "000000", BatchShape::decode(2, 3), Prefetch::layer, Start::cold);
  EXPECT_NEAR(found.seconds, 240 + 2.1, 1e-9);
}

TEST(TimelineTest, AllExpertsCrossWhateverRowsGoThrough) {
  ToyCosts costs(2);
  costs.model().num_experts = 8;
  costs.model().experts_per_token = 2;
  // A layer: 80 s of sublayers 1 and 4, 160 s an expert.
  for (const std::int64_t batch : {1, 4}) {
    const IterationEstimate found =
        estimate(costs, all_in(Tier::ddr, Tier::hbm, 2), "000000", BatchShape::decode(batch, 3),
                 Prefetch::layer, Start::steady);
    EXPECT_NEAR(found.busy.to_gpu_s, 2 * (80 + 8 * 160), 1e-9) << batch;
  }
}

TEST(TimelineTest, StoringKvIsATaskOfItsHome) {
  ToyCosts costs(4);
  for (auto& [way, rate] : costs.bytes_per_s) rate = never;
  costs.kv_store_s = {0.25, 2};
  const auto busy = [&](const char* digits, Tier kv) {
    const BusyTimes times = estimate(costs, all_in(Tier::hbm, kv, 4), digits,
                                     BatchShape::decode(2, 3), Prefetch::layer, Start::steady)
                                .busy;
    return std::pair(times.gpu_s, times.cpu_s);
  };
  const auto expect = [&](const char* digits, Tier kv, double gpu_s, double cpu_s) {
    EXPECT_NEAR(busy(digits, kv).first, 4 * gpu_s, 1e-9) << digits;
    EXPECT_NEAR(busy(digits, kv).second, 4 * cpu_s, 1e-9) << digits;
  };
  expect("000000", Tier::hbm, 2.1, 0);          // sublayer 1 stores it
  expect("011000", Tier::hbm, 1.6 + 0.25, 5);   // attention is away
  expect("000000", Tier::ddr, 2.1, 2);          // likewise
  expect("011000", Tier::ddr, 1.6, 5 + 2);      // sublayer 1 is
  expect("111000", Tier::ddr, 1.5, 6);          // nothing is
  expect("110000", Tier::ddr, 1.8, 1 + 2 + 2);  // sublayer 3 is
}

TEST(TimelineTest, DiskAndLinkBothWork) {
  ToyCosts costs(2);
  const IterationEstimate found =
      estimate(costs, all_in(Tier::disk, Tier::hbm, 2), "000000", BatchShape::decode(2, 3),
               Prefetch::layer, Start::steady);
  // 2400 bytes at 1 byte/s.
  EXPECT_NEAR(found.busy.disk_s, 2 * 2400, 1e-9);
  EXPECT_NEAR(found.seconds, 2 * 2400, 1e-9);
}

TEST(TimelineTest, HalfLayersFromADiskCrossBeforeTheNextIsRead) {
  ToyCosts costs = without_transfers(2);
  costs.bytes_per_s[{Tier::disk, Tier::ddr}] = 1;
  costs.bytes_per_s[{Tier::ddr, Tier::hbm}] = 2;
  const IterationEstimate found =
      estimate(costs, all_in(Tier::disk, Tier::hbm, 2), "000000", BatchShape::decode(2, 3),
               Prefetch::half_layer, Start::steady);
  // A layer: 2400 bytes at 1 byte/s; behind them 200 (output) and 800 (FC2) at 2.
  EXPECT_NEAR(found.busy.disk_s, 2 * 2400, 1e-9);
  EXPECT_NEAR(found.seconds, 2 * (2400 + 500), 1e-9);
}

TEST(TimelineTest, DiskWorksForAllExperts) {
  ToyCosts costs(1);
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  // 800 bytes of attention, 1600 of each expert.
  const IterationEstimate found = estimate(costs, all_in(Tier::disk, Tier::hbm, 1), "000000",
                                           BatchShape::decode(1, 3), Prefetch::layer, Start::cold);
  EXPECT_NEAR(found.busy.disk_s, 800 + 4 * 1600, 1e-9);
}

TEST(TimelineTest, KvOnADiskIsReadAheadAndWrittenByTheCpu) {
  ToyCosts costs = without_transfers(2);
  costs.bytes_per_s[{Tier::disk, Tier::ddr}] = 1;
  costs.bytes_per_s[{Tier::ddr, Tier::disk}] = 4;
  const IterationEstimate on_cpu =
      estimate(costs, all_in(Tier::ddr, Tier::disk, 2), "111111", BatchShape::decode(2, 3),
               Prefetch::layer, Start::steady);
  // A layer reads 2 x 3 tokens of 40 bytes, 240 s. Of each sequence 15 tokens are read to write
  // back 16: 1200 s and 320 s of the CPU, beside its 21 s of computation.
  EXPECT_NEAR(on_cpu.busy.disk_s, 2 * 240, 1e-9);
  EXPECT_NEAR(on_cpu.busy.cpu_s, 2 * (21 + 1200 + 320), 1e-9);
  EXPECT_NEAR(on_cpu.seconds, 2 * (21 + 1200 + 320), 1e-9);
  // Prompts of 3 tokens: a page each is written, none is read.
  const IterationEstimate prompts =
      estimate(costs, all_in(Tier::ddr, Tier::disk, 2), "111111", BatchShape::prefill(2, 3),
               Prefetch::layer, Start::cold);
  EXPECT_EQ(prompts.busy.disk_s, 0);
  EXPECT_NEAR(prompts.busy.cpu_s, 2 * (21 + 320), 1e-9);
}

TEST(TimelineTest, KvOnADiskCrossesToTheGpuOnceAllOfItIsRead) {
  ToyCosts costs = without_transfers(1);
  costs.bytes_per_s[{Tier::disk, Tier::ddr}] = 1e3;
  costs.bytes_per_s[{Tier::ddr, Tier::disk}] = 1e9;
  costs.bytes_per_s[{Tier::ddr, Tier::hbm}] = 2;
  const IterationEstimate found = estimate(costs, all_in(Tier::hbm, Tier::disk, 1), "000000",
                                           BatchShape::decode(2, 3), Prefetch::layer, Start::cold);
  EXPECT_NEAR(found.busy.to_gpu_s, 120, 1e-9);
  EXPECT_NEAR(found.seconds, 0.24 + 120 + 2.1, 1e-6);
}

TEST(TimelineTest, DiskForTheCpuLeavesTheLinkAlone) {
  ToyCosts costs(2);
  const IterationEstimate found =
      estimate(costs, all_in(Tier::disk, Tier::ddr, 2), "111111", BatchShape::decode(2, 3),
               Prefetch::layer, Start::steady);
  EXPECT_NEAR(found.busy.disk_s, 2 * 2400, 1e-9);
  EXPECT_EQ(found.busy.to_cpu_s, 0);
  EXPECT_EQ(found.busy.busiest().first, "disk");
}

// ---- Several chains

TEST(TimelineTest, MiniBatchesByHand) {
  // Prefill of 2 x 3 tokens in two parts, one layer, 1 s a sublayer on the GPU, weights 240 s,
  // a part's KV 120 bytes / 5 = 24 s, its hidden states 60 bytes: 12 s out, 6 s in.
  ToyCosts costs(1);
  costs.gpu_s = {1, 1, 1, 1, 1, 1};
  const std::vector<Chain> chains =
      cut_into_mini_batches(BatchShape::prefill(2, 3), 2, {placement("000000")});
  ASSERT_EQ(chains.size(), 2U);
  EXPECT_EQ(chains[1].parts[0].shape, BatchShape::prefill(1, 3));
  const IterationEstimate found = estimate_iteration(costs, all_in(Tier::ddr, Tier::ddr, 1), chains,
                                                     Prefetch::layer, Start::cold);
  // GPU: 240 to 246 and 246 to 252. Link to the CPU: KV 241 to 265, hidden states 265 to 277, KV
  // to 301, hidden states to 313; back at 319.
  EXPECT_NEAR(found.seconds, 319, 1e-9);
  // The first part has its token at 283.
  EXPECT_NEAR(found.rest_s, (319 - 283) / 2.0, 1e-9);
  EXPECT_NEAR(found.busy.gpu_s, 12, 1e-9);
  EXPECT_NEAR(found.busy.to_gpu_s, 240 + 12, 1e-9);
  EXPECT_NEAR(found.busy.to_cpu_s, 48 + 24, 1e-9);
}

TEST(TimelineTest, MiniBatchesShareWeightsAndLoadTheirOwnKv) {
  ToyCosts costs(2);
  const IterationEstimate whole =
      estimate(costs, all_in(Tier::ddr, Tier::ddr, 2), "000000", BatchShape::decode(6, 3),
               Prefetch::layer, Start::steady);
  const std::vector<Chain> chains = cut_into_mini_batches(
      BatchShape::decode(6, 3), 3, std::vector<Placement>(2, placement("000000")));
  const IterationEstimate cut = estimate_iteration(costs, all_in(Tier::ddr, Tier::ddr, 2), chains,
                                                   Prefetch::layer, Start::steady);
  // Hidden states, 2 x 6 rows of 20 bytes at 10 bytes/s, come on top.
  EXPECT_NEAR(cut.busy.to_gpu_s, whole.busy.to_gpu_s + 2 * 12, 1e-9);
  EXPECT_NEAR(cut.busy.to_cpu_s, whole.busy.to_cpu_s + 2 * 24, 1e-9);
}

TEST(TimelineTest, MiniBatchesAreEven) {
  const auto chains = cut_into_mini_batches(BatchShape::decode(7, 5), 3, {placement("000000")});
  std::vector<std::int64_t> sizes;
  sizes.reserve(chains.size());
  for (const Chain& chain : chains) sizes.push_back(chain.parts[0].shape.batch);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(cut_into_mini_batches(BatchShape::decode(2, 5), 9, {placement("000000")}).size(), 2U);
  EXPECT_FALSE(
      cut_into_mini_batches(BatchShape::decode(2, 5), 1, {placement("000000")})[0].takes_turns);
}

/// NEO section 3.2: two sub-batches, linears on the GPU, batch-0's attention partly there (Tga0),
/// the rest on the CPU (Tca0), batch-1's all on the CPU (Tca1):
/// T = L (max(Tl0, Tca1) + max(Tl1 + Tga0, Tca0)).
TEST(TimelineTest, TwoChainsInterleaveAsInNeo) {
  const std::int64_t num_layers = 20;
  const struct {
    double tga;
    double tca;
  } cases[] = {{2, 6}, {2, 3}, {2, 12}, {0.5, 1}, {4, 8}};
  for (const auto& [tga, tca] : cases) {
    ToyCosts costs = without_transfers(num_layers);
    costs.gpu_s = {1, tga / 2, tga / 2, 1, 2, 2};
    costs.cpu_s = {never, tca / 2, tca / 2, never, never, never};
    const BatchShape shape = BatchShape::decode(4, 5);
    const std::vector<Placement> on_gpu(static_cast<std::size_t>(num_layers), placement("000000"));
    const std::vector<Chain> chains = {
        {.parts = {{.shape = shape}, {.shape = shape, .attention = Device::cpu, .kv = Tier::ddr}},
         .placements = on_gpu},
        {.parts = {{.shape = shape, .attention = Device::cpu, .kv = Tier::ddr}},
         .placements = on_gpu}};
    const double found = estimate_iteration(costs, all_in(Tier::hbm, Tier::hbm, num_layers), chains,
                                            Prefetch::layer, Start::steady)
                             .seconds;
    const double tl = 6;
    const double neo =
        static_cast<double>(num_layers) * (std::max(tl, tca) + std::max(tl + tga, tca));
    EXPECT_LT(found, 1.001 * neo) << tga << ' ' << tca;
    EXPECT_GT(found, 0.88 * neo) << tga << ' ' << tca;
    std::printf("NEO: Tga0 %g, Tca %g: %.1f, formula %.1f\n", tga, tca, found, neo);
  }
}

// ---- What holds for all

struct RandomCase {
  ToyCosts costs;
  MemoryPlan memory;
  std::vector<Chain> chains;
  Prefetch prefetch = Prefetch::layer;
  Start start = Start::steady;

  double seconds() const {
    return estimate_iteration(costs, memory, chains, prefetch, start).seconds;
  }
};

RandomCase random_case(std::mt19937& random, std::int64_t most_chains) {
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const std::int64_t num_layers = draw(1, 5);
  RandomCase result{.costs = test::random_costs(random, num_layers),
                    .memory = all_in(Tier::ddr, Tier::ddr, num_layers),
                    .chains = {}};
  std::vector<Placement> placements;
  for (LayerHomes& homes : result.memory.layers) {
    if (draw(0, 3) == 0) homes = LayerHomes::all(Tier::hbm, Tier::hbm);
    if (draw(0, 3) == 0) homes[WeightKind::fc1] = Tier::hbm;
    if (draw(0, 3) == 0) homes.kv = Tier::hbm;
    placements.push_back(Placement::from_bits(static_cast<unsigned>(draw(0, 63))));
  }
  const BatchShape shape =
      draw(0, 1) == 0 ? BatchShape::prefill(draw(1, 9), 4) : BatchShape::decode(draw(1, 40), 4);
  result.chains = cut_into_mini_batches(shape, draw(1, most_chains), placements);
  result.prefetch = static_cast<Prefetch>(draw(0, 2));
  result.start = draw(0, 1) == 0 ? Start::cold : Start::steady;
  return result;
}

TEST(TimelineTest, NothingIsFasterThanItsBusiestPart) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    const RandomCase drawn = random_case(random, 3);
    const IterationEstimate found =
        estimate_iteration(drawn.costs, drawn.memory, drawn.chains, drawn.prefetch, drawn.start);
    const auto [name, busiest_s] = found.busy.busiest();
    ASSERT_GE(found.seconds, busiest_s * (1 - 1e-9))
        << round << ' ' << name << " prefetch " << static_cast<int>(drawn.prefetch) << " chains "
        << drawn.chains.size() << " start " << static_cast<int>(drawn.start) << " layers "
        << drawn.memory.layers.size();
  }
}

TEST(TimelineTest, OverlapNeverCosts) {
  std::mt19937 random(5);
  for (int round = 0; round < 1000; ++round) {
    RandomCase drawn = random_case(random, 1);
    drawn.prefetch = Prefetch::none;
    const double serial_s = drawn.seconds();
    for (const Prefetch prefetch : {Prefetch::half_layer, Prefetch::layer}) {
      drawn.prefetch = prefetch;
      ASSERT_LE(drawn.seconds(), serial_s * (1 + 1e-9)) << round;
    }
  }
}

TEST(TimelineTest, MoreBandwidthIsNeverSlower) {
  std::mt19937 random(6);
  for (int round = 0; round < 1000; ++round) {
    RandomCase drawn = random_case(random, 1);
    const double before_s = drawn.seconds();
    for (auto& [way, rate] : drawn.costs.bytes_per_s) rate *= 1.5;
    ASSERT_LE(drawn.seconds(), before_s * (1 + 1e-9)) << round;
  }
}

// ---- The best order of loads

/// A cold iteration of one chain whose units (each some loading, then some computing) are loaded in
/// a given order: a load may start when the unit two before it is done.
double seconds_in_order(const std::vector<double>& loads, const std::vector<double>& computes,
                        const std::vector<std::size_t>& order) {
  const std::size_t count = loads.size();
  std::vector<double> ready(count, -1);
  std::vector<double> done(count, -1);
  double link = 0;
  double device = 0;
  std::size_t next_load = 0;
  std::size_t next_compute = 0;
  while (next_compute < count) {
    bool moved = false;
    if (next_load < count) {
      const std::size_t unit = order[next_load];
      if (unit < 2 || done[unit - 2] >= 0) {
        link = std::max(link, unit < 2 ? 0 : done[unit - 2]) + loads[unit];
        ready[unit] = link;
        ++next_load;
        moved = true;
      }
    }
    if (!moved) {
      if (ready[next_compute] < 0) return never;  // the order blocks itself
      device = std::max(device, ready[next_compute]) + computes[next_compute];
      done[next_compute++] = device;
    }
  }
  return device;
}

TEST(TimelineTest, LayersThatAreOneTaskCostTheTaskSystemOne) {
  const SecondATask costs(10);
  const auto seconds = [&](const MemoryPlan& memory, const BatchShape& shape) {
    return estimate(costs, memory, "111111", shape, Prefetch::layer, Start::cold).seconds;
  };
  MemoryPlan memory = all_in(Tier::ddr, Tier::ddr, 10);
  // 21 s of computation a layer; tasks of 8 and 2 layers, or of one.
  EXPECT_DOUBLE_EQ(seconds(memory, BatchShape::decode(64, 3)), 210 + 2);
  EXPECT_DOUBLE_EQ(seconds(memory, BatchShape::decode(65, 3)), 210 + 10);
  // In the last layer of a prompt rows are dropped: 8, 1 and 1. A single row is not.
  EXPECT_DOUBLE_EQ(seconds(memory, BatchShape::prefill(1, 3)), 210 + 3);
  EXPECT_DOUBLE_EQ(seconds(memory, BatchShape::prefill(1, 1)), 210 + 2);
  // Layers in CXL memory take 3 x 21 s of these costs; 2 of them, and 8 others.
  memory.layers[0] = memory.layers[1] = LayerHomes::all(Tier::cxl, Tier::cxl);
  EXPECT_DOUBLE_EQ(seconds(memory, BatchShape::decode(1, 3)), 8 * 21 + 2 * 63 + 2);
  // A layer whose KV or weights come from elsewhere is its own: 4, 1 and 5 layers.
  memory = all_in(Tier::ddr, Tier::ddr, 10);
  memory.layers[4].kv = Tier::hbm;
  ToyCosts plain(10);
  const auto plain_seconds = [&](const BatchShape& shape) {
    return estimate(plain, memory, "111111", shape, Prefetch::layer, Start::cold).seconds;
  };
  const BatchShape one = BatchShape::decode(1, 3);
  EXPECT_NEAR(seconds(memory, one) - plain_seconds(one), 3, 1e-9);
}

TEST(TimelineTest, ATaskHasLayersOfOneDevice) {
  const SecondATask costs(20);
  MemoryPlan memory = all_in(Tier::hbm, Tier::hbm, 20);
  for (std::size_t layer = 9; layer < 20; ++layer)
    memory.layers[layer] = LayerHomes::all(Tier::ddr, Tier::ddr);
  auto chains = one_chain(BatchShape::decode(1, 3), placement("000000"), 20);
  for (std::size_t layer = 9; layer < 20; ++layer)
    chains[0].placements[layer] = placement("111111");
  const auto seconds = [&](const CostModel& of) {
    return estimate_iteration(of, memory, chains, Prefetch::layer, Start::cold).seconds;
  };
  const ToyCosts plain(20);
  EXPECT_NEAR(seconds(costs) - seconds(plain), 2 + 2, 1e-9);  // 8 and 1, 8 and 3 layers
  // NEO's requests whose attention is where the placement has it anyway.
  chains[0].parts[0].attention = Device::gpu;
  for (Placement& each : chains[0].placements) each = placement("000000");
  memory = all_in(Tier::hbm, Tier::hbm, 20);
  EXPECT_NEAR(seconds(costs) - seconds(plain), 3, 1e-9);
}

TEST(TimelineTest, SubBatchesTakeTurnsLayerByLayer) {
  SecondATask costs(10);
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr, 10);
  const Chain chain = one_chain(BatchShape::decode(1, 3), placement("111111"), 10).front();
  const std::vector<Chain> two = {chain, chain};
  EXPECT_DOUBLE_EQ(estimate_iteration(costs, memory, two, Prefetch::layer, Start::cold).seconds,
                   420 + 20);
}

TEST(TimelineTest, NoOrderOfLoadsBeatsTheOrderOfUse) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    ToyCosts costs = test::random_costs(random, 3);
    costs.head_s = {0, 0};
    MemoryPlan memory = all_in(Tier::ddr, Tier::hbm, 3);
    std::vector<double> loads;
    std::vector<double> computes;
    for (LayerHomes& homes : memory.layers) {
      if (round % 2 == 1 && std::uniform_int_distribution<int>(0, 1)(random) == 0)
        homes[WeightKind::fc1] = Tier::hbm;
      const LayerCost cost =
          layer_cost(costs, Placement(Device::gpu), BatchShape::decode(2, 3), homes);
      for (const std::size_t first : {0U, 4U}) {
        double load = 0;
        double compute = 0;
        for (std::size_t i = first; i < (first == 0 ? 4 : 6); ++i) {
          load += cost.sublayers[i].load_s();
          compute += cost.sublayers[i].compute_s;
        }
        loads.push_back(load);
        computes.push_back(compute);
      }
    }
    std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
    double best = never;
    do {
      best = std::min(best, seconds_in_order(loads, computes, order));
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_NEAR(estimate(costs, memory, "000000", BatchShape::decode(2, 3), Prefetch::half_layer,
                         Start::cold)
                    .seconds,
                best, 1e-9 * best)
        << round;
  }
}

}  // namespace
}  // namespace sluice
