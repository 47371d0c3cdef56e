#include "perfmodels/hot_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "perfmodels/analytic_model.h"
#include "perfmodels/footprint.h"
#include "perfmodels/layer_cost.h"
#include "perfmodels/timeline.h"
#include "tests/perfmodels/machine.h"
#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

using test::ToyCosts;
using Lists = std::vector<std::vector<std::int32_t>>;

ModelDimensions mixture(std::int64_t num_experts, std::int64_t experts_per_token) {
  ModelDimensions model = ToyCosts().model();
  model.num_experts = num_experts;
  model.experts_per_token = experts_per_token;
  return model;
}

// ---- What they catch

TEST(HotExpertsTest, OfAUniformRoutingTheyCatchTheirNumber) {
  const ModelDimensions model = mixture(8, 2);
  const Lists lists = {{1, 5}};
  const CountedHotExperts hot(model, 0, lists);
  EXPECT_EQ(hot.count(), 2);
  EXPECT_DOUBLE_EQ(hot.share(), 0.25);
  EXPECT_DOUBLE_EQ(hot.bytes(), 2 * 2 * 800);  // two experts of FC1 and FC2 with 800 bytes each
  const ExpertPart part = hot.hot(model, 5);
  EXPECT_EQ(part.experts, 2);
  EXPECT_NEAR(part.touched, 2 * (1 - std::pow(0.75, 5)), 1e-12);
  EXPECT_DOUBLE_EQ(part.pairs, 2.5);
  const ExpertPart others = hot.cold(model, 5);
  EXPECT_EQ(others.experts, 6);
  EXPECT_NEAR(others.touched, 6 * (1 - std::pow(0.75, 5)), 1e-12);
  EXPECT_DOUBLE_EQ(others.pairs, 7.5);
}

TEST(HotExpertsTest, OfASkewedRoutingTheyCatchTheirChances) {
  ModelDimensions model = mixture(16, 3);
  model.routing = Routing::zipf(1.2, 16, 3);
  const Lists lists = {{0, 1, 2, 3}};
  const CountedHotExperts hot(model, 0, lists);
  EXPECT_NEAR(hot.share(), model.routing->hot_share(4), 1e-12);
  double touched = 0;
  for (std::int64_t expert = 0; expert < 4; ++expert)
    touched += 1 - std::pow(1 - model.routing->chance(0, expert), 7);
  EXPECT_NEAR(hot.hot(model, 7).touched, touched, 1e-12);
  EXPECT_NEAR(hot.cold(model, 7).touched, model.routing->experts_touched(7) - touched, 1e-12);
  const Lists coldest = {{15, 14, 13, 12}};
  EXPECT_LT(CountedHotExperts(model, 0, coldest).share(), 0.2);
}

/// Choices of `rows` rows, drawn expert by expert by the weights 1 / (i + 1) of those left; the
/// experts' numbers are shuffled, differently in each layer.
RecordedRouting drawn(std::mt19937& random, std::int64_t rows, std::int64_t num_experts,
                      std::int64_t experts_per_token, std::int64_t layers) {
  RecordedRouting recorded;
  recorded.rows = rows;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::vector<std::int64_t> number(static_cast<std::size_t>(num_experts));
    std::iota(number.begin(), number.end(), 0);
    std::mt19937 of_layer(static_cast<unsigned>(layer));  // the model's, whatever the text
    std::shuffle(number.begin(), number.end(), of_layer);
    std::vector<std::int64_t>& counts = recorded.layers.emplace_back(number.size(), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<double> weights(number.size());
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] = 1.0 / static_cast<double>(i + 1);
      for (std::int64_t k = 0; k < experts_per_token; ++k) {
        const auto i =
            std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(random);
        weights[i] = 0;
        ++counts[static_cast<std::size_t>(number[i])];
      }
    }
  }
  return recorded;
}

/// Share of all choices that lists made from one text catch on another.
double caught(const Routing& made_from, const Routing& other, std::int64_t count,
              std::int64_t layers) {
  ModelDimensions model = mixture(other.num_experts(), other.experts_per_token());
  model.num_layers = layers;
  model.routing = other;
  MemoryPlan memory;
  memory.layers.assign(static_cast<std::size_t>(layers), LayerHomes::all(Tier::ddr, Tier::ddr));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::vector<std::int32_t>& list = memory.hot_experts.emplace_back();
    for (const std::int64_t expert : made_from.hottest(layer, count))
      list.push_back(static_cast<std::int32_t>(expert));
  }
  count_hot_experts(model, memory);
  return memory.layers.front().hot->share();
}

TEST(HotExpertsTest, ListsAreScoredOnTextThatTheyWereNotMadeFrom) {
  constexpr std::int64_t num_experts = 32;
  constexpr std::int64_t layers = 4;
  constexpr std::int64_t count = 8;
  constexpr int texts = 8;
  std::mt19937 random(7);
  const double exact = Routing::zipf(1, num_experts, 4).hot_share(count);
  const Routing other = Routing::recorded(drawn(random, 4000, num_experts, 4, layers), 4);
  double on_own = 0;
  double on_other = 0;
  for (int text = 0; text < texts; ++text) {
    const Routing made_from = Routing::recorded(drawn(random, 100, num_experts, 4, layers), 4);
    const double share = caught(made_from, other, count, layers);
    EXPECT_NEAR(share, exact, 0.03);
    EXPECT_LE(share, other.hot_share(count));  // no list is better than a text's own
    on_own += made_from.hot_share(count) / texts;
    on_other += share / texts;
  }
  EXPECT_GT(on_own, on_other + 0.01);  // on its own text a list looks better than it is
  EXPECT_GT(on_other, 2.0 * count / num_experts);
}

TEST(HotExpertsTest, LayersWithAsManyShareTheirMeanAndOthersDoNot) {
  ModelDimensions model = mixture(4, 1);
  model.num_layers = 3;
  MemoryPlan memory;
  memory.layers.assign(3, LayerHomes::all(Tier::ddr, Tier::ddr));
  memory.hot_experts = {{0}, {3}, {2}};
  count_hot_experts(model, memory);
  EXPECT_EQ(memory.layers[0], memory.layers[2]);
  memory.hot_experts = {{0}, {1, 3}, {}};
  count_hot_experts(model, memory);
  EXPECT_EQ(memory.layers[0].hot->count(), 1);
  EXPECT_EQ(memory.layers[1].hot->count(), 2);
  EXPECT_EQ(memory.layers[2].hot, nullptr);
  memory.layers[0][WeightKind::fc1] = memory.layers[0][WeightKind::fc2] = Tier::hbm;
  count_hot_experts(model, memory);
  EXPECT_EQ(memory.layers[0].hot, nullptr);
}

// ---- What they cost

/// One layer with attention in HBM, its experts in DDR but for `lists`.
MemoryPlan one_layer(const ModelDimensions& model, const Lists& lists) {
  MemoryPlan memory;
  memory.layers.assign(1, LayerHomes::all(Tier::hbm, Tier::hbm));
  memory.layers[0][WeightKind::fc1] = memory.layers[0][WeightKind::fc2] = Tier::ddr;
  memory.lm_head = Tier::hbm;
  memory.hot_experts = lists;
  count_hot_experts(model, memory);
  return memory;
}

Placement placement(const char* digits) { return Placement::parse(digits).value(); }

double sublayers_s(const LayerCost& cost) {
  double sum = 0;
  for (const SublayerCost& sublayer : cost.sublayers) sum += sublayer.total_s();
  return sum;
}

TEST(HotExpertsTest, RunBesideTheOthersOnTheCpu) {
  ToyCosts costs;
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  const MemoryPlan memory = one_layer(costs.model(), {{2}});
  const BatchShape shape = BatchShape::decode(3, 10);
  const LayerCost cost = layer_cost(costs, placement("000011"), shape, memory.layers[0]);
  // Three quarters of 5 and 6 s on the CPU, a quarter of 0.5 and 0.6 s on the GPU meanwhile.
  EXPECT_DOUBLE_EQ(cost.sublayers[4].compute_s, 0.75 * 5);
  EXPECT_DOUBLE_EQ(cost.sublayers[5].compute_s, 0.75 * 6);
  EXPECT_DOUBLE_EQ(cost.sublayers[4].hot_s, 0.25 * 1.1);
  EXPECT_EQ(cost.sublayers[4].hot_values_s, 0);
  EXPECT_EQ(cost.sublayers[4].hot_sum_s, 0);
  EXPECT_DOUBLE_EQ(cost.compute_s(Device::gpu), 1 + 0.25 * 1.1);
  EXPECT_DOUBLE_EQ(cost.sum_s(), sublayers_s(cost));  // it hides
  EXPECT_DOUBLE_EQ(cost.chained_s(), cost.load_s() + 1 + 0.75 * 11);
}

TEST(HotExpertsTest, TheSlowerOfBothCounts) {
  ToyCosts costs;
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  costs.gpu_s[4] = 40;
  const MemoryPlan memory = one_layer(costs.model(), {{2, 3}});
  const BatchShape shape = BatchShape::decode(3, 10);
  const LayerCost cost = layer_cost(costs, placement("000111"), shape, memory.layers[0]);
  // Rows cross to the GPU: 3 of 10 values, 2 bytes each, at 10 bytes/s; their sum back at 5.
  EXPECT_DOUBLE_EQ(cost.sublayers[4].hot_values_s, 6);
  EXPECT_DOUBLE_EQ(cost.sublayers[4].hot_sum_s, 12);
  EXPECT_DOUBLE_EQ(cost.sublayers[4].hot_s, 0.5 * 40.6);
  const double cold_s = 0.5 * 11;
  EXPECT_DOUBLE_EQ(cost.sum_s(), sublayers_s(cost) - cold_s + 6 + 0.5 * 40.6 + 12);
}

TEST(HotExpertsTest, TheOthersCrossWhereTheGpuComputesAll) {
  ToyCosts costs;
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  const BatchShape shape = BatchShape::decode(3, 10);
  const LayerHomes hot = one_layer(costs.model(), {{2}}).layers[0];
  const LayerHomes none = one_layer(costs.model(), {}).layers[0];
  const Placement gpu(Device::gpu);
  const LayerCost with = layer_cost(costs, gpu, shape, hot);
  const LayerCost without = layer_cost(costs, gpu, shape, none);
  EXPECT_DOUBLE_EQ(without.load_s(), 4 * 1600 / 10.0);
  EXPECT_DOUBLE_EQ(with.load_s(), 3 * 1600 / 10.0);
  EXPECT_EQ(with.compute_s(Device::gpu), without.compute_s(Device::gpu));
  EXPECT_EQ(with.sublayers[4].hot_s, 0);
}

TEST(HotExpertsTest, AnIterationWaitsForBoth) {
  ToyCosts costs;
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  for (auto& [way, rate] : costs.bytes_per_s) rate = 1e30;
  const std::vector<Chain> chains = {
      {.parts = {{.shape = BatchShape::decode(3, 10)}}, .placements = {placement("000011")}}};
  const auto seconds = [&](const Lists& lists) {
    return estimate_iteration(costs, one_layer(costs.model(), lists), chains, Prefetch::layer,
                              Start::steady)
        .seconds;
  };
  EXPECT_NEAR(seconds({}), 1 + 11, 1e-12);
  EXPECT_NEAR(seconds({{0}}), 1 + 0.75 * 11, 1e-12);
  EXPECT_NEAR(seconds({{0, 1}}), 1 + 0.5 * 11, 1e-12);
  costs.gpu_s[5] = 30;  // half of that takes longer than what the CPU has to do
  EXPECT_NEAR(seconds({{0, 1}}), 0.1 + 0.2 + 0.3 + 0.4 + 0.5 * 30.5, 1e-12);
}

TEST(HotExpertsTest, TakeRoomInHbmInsteadOfTheirHome) {
  ToyCosts costs;
  costs.model().num_experts = 4;
  costs.model().experts_per_token = 1;
  const std::array<Pipeline, 2> pipelines;
  const Workload workload = {.batch = 1, .input_tokens = 4, .output_tokens = 4};
  const Footprint none = footprint(costs, one_layer(costs.model(), {}), pipelines, workload);
  const Footprint hot = footprint(costs, one_layer(costs.model(), {{1, 3}}), pipelines, workload);
  EXPECT_DOUBLE_EQ(hot.weights[Tier::hbm], none.weights[Tier::hbm] + 2 * 1600);
  EXPECT_DOUBLE_EQ(hot.weights[Tier::ddr], none.weights[Tier::ddr] - 2 * 1600);
  EXPECT_DOUBLE_EQ(hot.staging[Tier::hbm], none.staging[Tier::hbm] / 2);
}

TEST(HotExpertsTest, AllExpertsInTwoPartsAreAllTheWork) {
  ModelDimensions model = mixture(16, 2);
  model.hidden_size = model.embed_size = 1024;
  model.routing = Routing::zipf(1, 16, 2);
  const AnalyticModel costs(patched_machine("{}"), model);
  const BatchShape shape = BatchShape::decode(64, 100);
  const ExpertPart all = all_experts(model, 64);
  for (const Sublayer sublayer : {Sublayer::fc1, Sublayer::fc2}) {
    for (const Device device : {Device::gpu, Device::cpu}) {
      EXPECT_DOUBLE_EQ(costs.experts_s(device, sublayer, shape, own_tier(device), all),
                       costs.compute_s(device, sublayer, shape));
    }
    const SublayerWork whole = sublayer_work(model, sublayer, shape);
    const SublayerWork part = expert_work(model, sublayer, shape, all);
    EXPECT_DOUBLE_EQ(part.x_bytes, whole.x_bytes);
    EXPECT_DOUBLE_EQ(part.y_bytes, whole.y_bytes);
    EXPECT_DOUBLE_EQ(part.flops, whole.flops);
  }
}

}  // namespace
}  // namespace sluice
