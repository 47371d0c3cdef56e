#include "perfmodels/layer_cost.h"

#include <gtest/gtest.h>

#include <random>

#include "perfmodels/analytic_model.h"
#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

using test::ToyCosts;

const ModelDimensions opt_175b = {.num_layers = 96,
                                  .hidden_size = 12288,
                                  .embed_size = 12288,
                                  .num_heads = 96,
                                  .num_kv_heads = 96,
                                  .head_dim = 128,
                                  .ffn_size = 49152,
                                  .vocab_size = 50272,
                                  .gated_ffn = false};

const LayerHomes in_ddr = LayerHomes::all(Tier::ddr, Tier::ddr);
const LayerHomes in_hbm = LayerHomes::all(Tier::hbm, Tier::hbm);

Placement placement(const char* digits) { return Placement::parse(digits).value(); }

void expect_work(const ModelDimensions& model, Sublayer sublayer, const BatchShape& shape,
                 double x_bytes, double y_bytes, double flops) {
  const SublayerWork work = sublayer_work(model, sublayer, shape);
  EXPECT_EQ(work.x_bytes, x_bytes) << to_string(sublayer);
  EXPECT_EQ(work.y_bytes, y_bytes) << to_string(sublayer);
  EXPECT_EQ(work.flops, flops) << to_string(sublayer);
}

// ---- LIA Table 1

TEST(SublayerWorkTest, PrefillOfOptIsLiaTable1) {
  const double b = 3;
  const double l = 100;
  const double d = 12288;
  const BatchShape shape = BatchShape::prefill(3, 100);
  expect_work(opt_175b, Sublayer::qkv, shape, 2 * b * l * d, 6 * d * d, 6 * b * l * d * d);
  expect_work(opt_175b, Sublayer::qk, shape, 2 * b * l * d, 2 * b * l * d, 2 * b * l * l * d);
  expect_work(opt_175b, Sublayer::sv, shape, 2 * b * l * d, 2 * b * l * d, 2 * b * l * l * d);
  expect_work(opt_175b, Sublayer::out_proj, shape, 2 * b * l * d, 2 * d * d, 2 * b * l * d * d);
  expect_work(opt_175b, Sublayer::fc1, shape, 2 * b * l * d, 8 * d * d, 8 * b * l * d * d);
  expect_work(opt_175b, Sublayer::fc2, shape, 8 * b * l * d, 8 * d * d, 8 * b * l * d * d);
}

TEST(SublayerWorkTest, DecodeOfOptIsLiaTable1) {
  const double b = 64;
  const double l = 100;
  const double d = 12288;
  const BatchShape shape = BatchShape::decode(64, 100);
  expect_work(opt_175b, Sublayer::qkv, shape, 2 * b * d, 6 * d * d, 6 * b * d * d);
  expect_work(opt_175b, Sublayer::qk, shape, 2 * b * d, 2 * b * l * d, 2 * b * l * d);
  expect_work(opt_175b, Sublayer::sv, shape, 2 * b * d, 2 * b * l * d, 2 * b * l * d);
  expect_work(opt_175b, Sublayer::out_proj, shape, 2 * b * d, 2 * d * d, 2 * b * d * d);
  expect_work(opt_175b, Sublayer::fc1, shape, 2 * b * d, 8 * d * d, 8 * b * d * d);
  expect_work(opt_175b, Sublayer::fc2, shape, 8 * b * d, 8 * d * d, 8 * b * d * d);
}

/// Llama-3-70B: 64 heads over 8 KV heads, an FFN of 28672 with a gate.
TEST(SublayerWorkTest, HeadsShareKvAndGatesDoubleFc1) {
  const ModelDimensions model = {.num_layers = 80,
                                 .hidden_size = 8192,
                                 .embed_size = 8192,
                                 .num_heads = 64,
                                 .num_kv_heads = 8,
                                 .head_dim = 128,
                                 .ffn_size = 28672,
                                 .vocab_size = 128256};
  const BatchShape shape = BatchShape::decode(4, 1000);
  // 8192 x (8192 + 2 x 1024) weights.
  expect_work(model, Sublayer::qkv, shape, 65536, 167772160, 671088640);
  // Q has 8192, K 1024 values a token: 4 x 1000 x 1024 x 2 bytes; 2 x 4 x 1000 x 8192 FLOP.
  expect_work(model, Sublayer::qk, shape, 65536, 8192000, 65536000);
  expect_work(model, Sublayer::sv, shape, 65536, 8192000, 65536000);
  expect_work(model, Sublayer::out_proj, shape, 65536, 134217728, 536870912);
  // 2 x 8192 x 28672 weights.
  expect_work(model, Sublayer::fc1, shape, 65536, 939524096, 3758096384);
  expect_work(model, Sublayer::fc2, shape, 229376, 469762048, 1879048192);
}

TEST(SublayerWorkTest, BatchesTouchSomeExperts) {
  ModelDimensions model = ToyCosts().model();
  model.num_experts = 4;
  model.experts_per_token = 2;
  // One row goes through 2 experts of 800 bytes each; FC2 gets 40 values from each of them.
  expect_work(model, Sublayer::fc1, BatchShape::decode(1, 5), 20, 1600, 1600);
  expect_work(model, Sublayer::fc2, BatchShape::decode(1, 5), 160, 1600, 1600);
  // Of 4 experts each of 2 rows misses one with probability 1/2: 3 are touched.
  expect_work(model, Sublayer::fc1, BatchShape::decode(2, 5), 40, 2400, 3200);
  expect_work(model, Sublayer::out_proj, BatchShape::decode(2, 5), 40, 200, 400);
}

// ---- Equations 2 to 9 by hand: 10 bytes/s to the GPU, 5 from it

/// Seconds of each sublayer's loads and of the KV store; of computation the tables of ToyCosts.
void expect_cost(const LayerCost& cost, const std::array<double, 6>& stored_s,
                 const std::array<double, 6>& values_s, double store_s) {
  const ToyCosts costs;
  for (std::size_t i = 0; i < 6; ++i) {
    const Sublayer sublayer = layer_sublayers[i];
    const SublayerCost& here = cost.sublayers[i];
    const std::string what = cost.placement.to_string() + " " + std::string(to_string(sublayer));
    EXPECT_NEAR(here.stored_s, stored_s[i], 1e-9) << what;
    EXPECT_NEAR(here.values_s, values_s[i], 1e-9) << what;
    EXPECT_NEAR(here.store_s, i == 0 ? store_s : 0, 1e-9) << what;
    const bool on_cpu = cost.placement[sublayer] == Device::cpu;
    EXPECT_NEAR(here.compute_s, on_cpu ? costs.cpu_s[i] : costs.gpu_s[i], 1e-9) << what;
  }
}

/// B = 2, L = 3: D_X = 2 x 6 x 10 = 120 bytes (FC2's 480), K and V 120 each, scores 2 x 6 x 2 x 3
/// = 72, the weights as ToyCosts says.
class PrefillCostTest : public testing::Test {
 protected:
  LayerCost cost(const char* digits, const LayerHomes& homes = in_ddr) const {
    return layer_cost(costs_, placement(digits), BatchShape::prefill(2, 3), homes);
  }
  ToyCosts costs_;
};

TEST_F(PrefillCostTest, AllOnTheCpuLoadsNothing) { expect_cost(cost("111111"), {}, {}, 0); }

TEST_F(PrefillCostTest, AllOnTheGpuLoadsWeightsAndStoresKv) {
  // Equation 5; equation 9: 240 bytes of K and V.
  expect_cost(cost("000000"), {60, 0, 0, 20, 80, 80}, {}, 48);
}

TEST_F(PrefillCostTest, AttentionOnTheCpuFetchesFreshKv) {
  // Equation 4: Q to the CPU, 120 / 5, attention's output back, 120 / 10; 7: K and V, 120 / 5 each.
  expect_cost(cost("011000"), {60, 0, 0, 20, 80, 80}, {0, 48, 24, 12, 0, 0}, 48);
}

TEST_F(PrefillCostTest, AttentionAloneOnTheGpuFetchesFreshKv) {
  expect_cost(cost("100111"), {}, {0, 24, 12, 24, 0, 0}, 0);
}

TEST_F(PrefillCostTest, ResidualOfAttentionFollowsTheOutputProjection) {
  // p0 = p6: X to the CPU for QKV. Equation 6: from sublayer 1's device to sublayer 4's.
  expect_cost(cost("111000"), {0, 0, 0, 20, 80, 80}, {24, 0, 0, 24, 0, 0}, 0);
}

TEST_F(PrefillCostTest, ResidualOfTheFfnIsAHiddenState) {
  // p4 = p5 = 1: X and residual to the CPU, 24 each. p6 = 0: FC2's 480 bytes / 10, and a residual
  // of 120 / 10, where the printed equation 6 has D_X of sublayer 6, 480.
  expect_cost(cost("000110"), {60, 0, 0, 0, 0, 80}, {0, 0, 0, 48, 0, 60}, 48);
}

TEST_F(PrefillCostTest, TheFirstSublayerFollowsTheLast) {
  // Only FC2 on the CPU: its 480 / 5 and residual 120 / 5 go there, the next layer's X comes back.
  expect_cost(cost("000001"), {60, 0, 0, 20, 80, 0}, {12, 0, 0, 0, 0, 120}, 48);
}

TEST_F(PrefillCostTest, ScoresCrossBetweenQkAndSv) {
  // QK alone on the CPU: Q and K, 24 each; 72 bytes of scores back / 10.
  expect_cost(cost("010000"), {60, 0, 0, 20, 80, 80}, {0, 48, 7.2, 0, 0, 0}, 48);
  // SV alone: scores 72 / 5 and V 24 to the CPU, its output back.
  expect_cost(cost("001000"), {60, 0, 0, 20, 80, 80}, {0, 0, 38.4, 12, 0, 0}, 48);
}

TEST_F(PrefillCostTest, ResidentLayersLoadAndStoreNothing) {
  expect_cost(cost("000000", in_hbm), {}, {}, 0);
  EXPECT_TRUE(in_hbm.resident());
}

TEST_F(PrefillCostTest, ResidentWeightsCrossToTheCpu) {
  // 600, 200, 800 and 800 bytes at 5 bytes/s; KV home, 240 at 10.
  expect_cost(cost("111111", in_hbm), {120, 0, 0, 40, 160, 160}, {}, 24);
}

TEST_F(PrefillCostTest, OverheadsCountForEveryTask) {
  costs_.overhead_s = {0.01, 0.02};
  EXPECT_NEAR(cost("011000").compute_s(Device::gpu), 0.1 + 0.4 + 0.5 + 0.6 + 4 * 0.01, 1e-9);
  EXPECT_NEAR(cost("011000").compute_s(Device::cpu), 2 + 3 + 2 * 0.02, 1e-9);
}

/// Adds the same to a task of any number of sublayers.
class OverheadOfTasks : public ToyCosts {
 public:
  double task_overhead_s(Device device, int /*num_sublayers*/) const override {
    return device == Device::gpu ? 0.01 : 0.02;
  }
};

TEST_F(PrefillCostTest, ATasksOverheadCountsOnceForItsSublayers) {
  const OverheadOfTasks costs;
  const auto seconds = [&](const char* digits, Device device) {
    return layer_cost(costs, placement(digits), BatchShape::prefill(2, 3), in_ddr)
        .compute_s(device);
  };
  // Three tasks: 1; 2 and 3; 4 to 6.
  EXPECT_NEAR(seconds("011000", Device::gpu), 0.1 + 0.4 + 0.5 + 0.6 + 2 * 0.01, 1e-9);
  EXPECT_NEAR(seconds("011000", Device::cpu), 2 + 3 + 0.02, 1e-9);
  EXPECT_NEAR(seconds("111111", Device::cpu), 1 + 2 + 3 + 4 + 5 + 6 + 0.02, 1e-9);
  // The layer before ends on the same device, as a task of its own.
  EXPECT_NEAR(seconds("010101", Device::cpu), 2 + 4 + 6 + 3 * 0.02, 1e-9);
}

TEST_F(PrefillCostTest, SumsAndMaximaAreOfTheSublayers) {
  const LayerCost layer = cost("011000");
  // Loads 240 and 84, store 48, computation 5 and 1.6.
  EXPECT_NEAR(layer.load_s(), 324, 1e-9);
  EXPECT_NEAR(layer.store_s(), 48, 1e-9);
  EXPECT_NEAR(layer.sum_s(), 378.6, 1e-9);
  EXPECT_NEAR(layer.overlapped_s(), 324, 1e-9);
  EXPECT_NEAR(cost("111111").overlapped_s(), 21, 1e-9);
}

/// B = 2, L = 3: D_X = 40 bytes (FC2's 160), cached K and V 120 each, new ones 80 together, scores
/// 2 x 2 x 2 x 3 = 24.
class DecodeCostTest : public testing::Test {
 protected:
  LayerCost cost(const char* digits, const LayerHomes& homes = in_ddr) const {
    return layer_cost(costs_, placement(digits), BatchShape::decode(2, 3), homes);
  }
  ToyCosts costs_;
};

TEST_F(DecodeCostTest, AttentionOnTheGpuLoadsTheCache) {
  expect_cost(cost("000000"), {60, 12, 12, 20, 80, 80}, {}, 16);
}

TEST_F(DecodeCostTest, AttentionOnTheCpuReadsTheCacheInPlace) {
  expect_cost(cost("011000"), {60, 0, 0, 20, 80, 80}, {0, 8, 0, 4, 0, 0}, 16);
}

TEST_F(DecodeCostTest, ScoresCrossBetweenQkAndSvAndTheWholeSlab) {
  expect_cost(cost("010000"), {60, 0, 24, 20, 80, 80}, {0, 8, 2.4, 0, 0, 0}, 16);
}

TEST_F(DecodeCostTest, CacheInHbmGoesToAttentionOnTheCpu) {
  // K and V 120 / 5 each; new ones stay where QKV runs and KV lives.
  LayerHomes homes = in_ddr;
  homes.kv = Tier::hbm;
  expect_cost(cost("011000", homes), {60, 24, 24, 20, 80, 80}, {0, 8, 0, 4, 0, 0}, 0);
  // QKV on the CPU: 80 / 10 of new KV to HBM.
  expect_cost(cost("111111", homes), {0, 24, 24, 0, 0, 0}, {}, 8);
}

TEST_F(DecodeCostTest, WeightsInCxlAreReadThereByTheCpu) {
  const LayerHomes in_cxl = LayerHomes::all(Tier::cxl, Tier::ddr);
  const LayerCost on_cpu = cost("111111", in_cxl);
  EXPECT_EQ(on_cpu.load_s(), 0);
  // Three times as long where weights are read: 3 x (1 + 4 + 5 + 6), not the attention's 2 + 3.
  EXPECT_NEAR(on_cpu.compute_s(Device::cpu), 53, 1e-9);
  // To the GPU at 4 bytes/s; there they are computed on in HBM.
  expect_cost(cost("000000", in_cxl), {150, 12, 12, 50, 200, 200}, {}, 16);
}

TEST_F(DecodeCostTest, KvInCxlIsStoredThere) {
  const LayerHomes homes = LayerHomes::all(Tier::ddr, Tier::cxl);
  // 80 bytes at 2 bytes/s; K and V 120 / 4 each.
  expect_cost(cost("000000", homes), {60, 30, 30, 20, 80, 80}, {}, 40);
  EXPECT_NEAR(cost("111111", homes).compute_s(Device::cpu), 1 + 3 * (2 + 3) + 4 + 5 + 6, 1e-9);
}

TEST_F(DecodeCostTest, HalfALayerInHbmLoadsTheOtherHalf) {
  LayerHomes homes = in_ddr;
  homes[WeightKind::key] = homes[WeightKind::fc1] = Tier::hbm;
  expect_cost(cost("000000", homes), {40, 12, 12, 20, 0, 80}, {}, 16);
  EXPECT_FALSE(homes.resident());
}

// ---- Equation 1

/// The equations once more, one line each, nothing shared with layer_cost.cc but Table 1.
double slow_load_s(const ToyCosts& costs, unsigned bits, const BatchShape& shape,
                   const LayerHomes& homes) {
  const auto p = [&](int i) { return i == 0 ? bits >> 5 & 1U : bits >> (i - 1) & 1U; };
  const auto place = [](unsigned device) { return device == 1 ? Tier::ddr : Tier::hbm; };
  const auto home_device = [](Tier tier) { return tier == Tier::hbm ? 0U : 1U; };
  const double t = static_cast<double>(shape.batch * shape.rows);
  const auto d = static_cast<double>(costs.model().hidden_size);
  const auto context = static_cast<double>(shape.context);
  const double new_kv = 2 * t * d;  // K or V
  const std::array<double, 7> x = {0,         2 * t * d, 2 * t * d, 2 * t * 2 * context,
                                   2 * t * d, 2 * t * d, 8 * t * d};
  const std::array<double, 7> y = {
      0,         6 * d * d, 2 * static_cast<double>(shape.batch) * context * d, 0, 2 * d * d,
      8 * d * d, 8 * d * d};
  double sum = 0;
  for (int i = 1; i <= 6; ++i) {
    const auto cross = [&](unsigned from, double bytes) {
      if (from != p(i)) sum += costs.transfer_s(place(from), place(p(i)), bytes);
    };
    const auto fetch = [&](Tier home, double bytes) {
      if (home_device(home) != p(i)) sum += costs.transfer_s(home, place(p(i)), bytes);
    };
    const auto at = static_cast<std::size_t>(i);
    cross(p(i - 1), x[at]);
    if (i == 2 || i == 3) {
      // K and V lie in one slab: where one of the two sublayers is away, both cross.
      const double cached_kv = (p(2) == p(3) ? 1 : 2) * y[2];
      shape.phase == Phase::prefill ? cross(p(1), new_kv) : fetch(homes.kv, cached_kv);
    } else {
      fetch(homes[i == 1   ? WeightKind::query
                  : i == 4 ? WeightKind::out_proj
                  : i == 5 ? WeightKind::fc1
                           : WeightKind::fc2],
            y[at]);
    }
    if (i == 4) cross(p(1), 2 * t * d);
    if (i == 6) cross(p(4), 2 * t * d);
  }
  return sum;
}

double slow_store_s(const ToyCosts& costs, unsigned bits, const BatchShape& shape,
                    const LayerHomes& homes) {
  const bool qkv_on_cpu = (bits & 1U) != 0;
  const double bytes = 4.0 * static_cast<double>(shape.batch * shape.rows) *
                       static_cast<double>(costs.model().hidden_size);
  if (qkv_on_cpu == (homes.kv != Tier::hbm)) return 0;
  return costs.transfer_s(qkv_on_cpu ? Tier::ddr : Tier::hbm, homes.kv, bytes);
}

double slow_compute_s(const ToyCosts& costs, unsigned bits, const LayerHomes& homes) {
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const bool on_cpu = (bits >> i & 1U) != 0;
    const Tier home = i == 1 || i == 2 ? homes.kv
                      : i == 0         ? homes[WeightKind::query]
                      : i == 3         ? homes[WeightKind::out_proj]
                      : i == 4         ? homes[WeightKind::fc1]
                                       : homes[WeightKind::fc2];
    sum += on_cpu ? costs.cpu_s[i] * (home == Tier::cxl ? costs.cxl_factor : 1) : costs.gpu_s[i];
  }
  return sum;
}

LayerHomes random_homes(std::mt19937& random) {
  std::uniform_int_distribution<int> tier(0, 2);
  LayerHomes homes;
  for (Tier& home : homes.weights) home = static_cast<Tier>(tier(random));
  homes[WeightKind::key] = homes[WeightKind::value] = homes[WeightKind::query];
  homes.kv = static_cast<Tier>(tier(random));
  return homes;
}

TEST(BestPlacementTest, IsTheBestOfAll) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const ToyCosts costs = test::random_costs(random);
    const LayerHomes homes = round % 2 == 0 ? in_ddr : random_homes(random);
    const BatchShape shape =
        round % 3 == 0 ? BatchShape::prefill(1 + round % 5, 7) : BatchShape::decode(1 + round, 9);
    double least_sum = 1e300;
    double least_overlapped = 1e300;
    for (unsigned bits = 0; bits < 64; ++bits) {
      const double load_s = slow_load_s(costs, bits, shape, homes);
      const double store_s = slow_store_s(costs, bits, shape, homes);
      const double compute_s = slow_compute_s(costs, bits, homes);
      const LayerCost cost = layer_cost(costs, Placement::from_bits(bits), shape, homes);
      ASSERT_NEAR(cost.sum_s(), load_s + store_s + compute_s, 1e-9 * cost.sum_s())
          << round << ' ' << cost.placement.to_string();
      least_sum = std::min(least_sum, load_s + store_s + compute_s);
      least_overlapped = std::min(least_overlapped, std::max({load_s, store_s, compute_s}));
    }
    EXPECT_NEAR(best_placement(costs, shape, homes, Overlap::none).sum_s(), least_sum,
                1e-9 * least_sum);
    EXPECT_NEAR(best_placement(costs, shape, homes, Overlap::transfers).overlapped_s(),
                least_overlapped, 1e-9 * least_overlapped);
  }
}

TEST(BestPlacementTest, PrefersFewerChangesOfDeviceAmongEquals) {
  ToyCosts costs;
  costs.cpu_s = costs.gpu_s = {1, 1, 1, 1, 1, 1};
  for (auto& [way, rate] : costs.bytes_per_s) rate = 1e300;
  const LayerCost best =
      best_placement(costs, BatchShape::decode(1, 5), in_ddr, Overlap::transfers);
  EXPECT_TRUE(best.placement == placement("000000") || best.placement == placement("111111"))
      << best.placement.to_string();
}

TEST(BestPlacementTest, KeepsToDevicesThatExist) {
  ToyCosts costs;
  costs.has_gpu = false;
  const BatchShape shape = BatchShape::decode(1, 5);
  EXPECT_EQ(best_placement(costs, shape, in_ddr, Overlap::none).placement, placement("111111"));
  costs.has_gpu = true;
  costs.has_cpu = false;
  EXPECT_EQ(best_placement(costs, shape, in_hbm, Overlap::none).placement, placement("000000"));
}

/// LIA section 7.1: with many experts, FC1 and FC2 have more weights and fewer operations a byte.
TEST(BestPlacementTest, ExpertsStayOnTheCpu) {
  ModelDimensions experts = opt_175b;  // 2 of 64 experts of half the FFN: as many active weights
  experts.num_experts = 64;
  experts.experts_per_token = 2;
  experts.ffn_size /= 2;
  const AnalyticModel dense(load_profile("spr-a100"), opt_175b);
  const AnalyticModel sparse(load_profile("spr-a100"), experts);
  const BatchShape shape = BatchShape::decode(1500, 512);
  EXPECT_EQ(best_placement(dense, shape, in_ddr, Overlap::none).placement, placement("011000"));
  EXPECT_EQ(best_placement(sparse, shape, in_ddr, Overlap::none).placement, placement("011011"));
}

/// The same by hand for OPT-175B cut into `num_experts` experts, one a token, with the numbers of
/// spr-a100: seconds that FC1 and FC2 cost where the GPU computes QKV and the output projection.
/// Both have 4 d^2 weights of 2 bytes, all of which are touched by so many rows.
struct FfnByHand {
  double num_experts;
  double d = 12288;
  double weight_bytes = 2 * 4 * d * d;

  double flops(double batch) const { return 2 * batch * 4 * d * d / num_experts; }  // of each

  /// Loaded over PCIe, read from HBM with the inputs, and multiplied, one after the other.
  double on_gpu_s(double batch) const {
    const double loading_s = weight_bytes / 24e9 + 10e-6;
    const double inputs = 2 * batch * d + 2 * batch * 4 * d / num_experts;
    return 2 * (loading_s + 1.3e-6 + flops(batch) / 145e12) + (2 * weight_bytes + inputs) / 1047e9;
  }
  /// Arithmetic, as it takes longer than reading; and FC1's input, FC2's residual and its output
  /// for the next layer, which cross.
  double on_cpu_s(double batch) const {
    const double rows = batch / num_experts;
    const double flop_per_s = 16.9e12 * rows / (rows + 9.4);
    return 2 * flops(batch) / flop_per_s + 3 * (2 * batch * d / 24e9 + 10e-6);
  }
};

/// The load of equation 5 is that of all weights, however they are cut, while equation 8's
/// arithmetic falls as 1 / experts: the batch from which the GPU computes the FFN rises.
TEST(BestPlacementTest, ExpertsCrossToTheGpuAtTheBatchWorkedByHand) {
  for (const std::int64_t num_experts : {2, 4}) {
    ModelDimensions experts = opt_175b;
    experts.num_experts = num_experts;
    experts.experts_per_token = 1;
    experts.ffn_size /= num_experts;
    const AnalyticModel costs(load_profile("spr-a100"), experts);
    const FfnByHand ffn{static_cast<double>(num_experts)};
    std::int64_t crossing = 1000;
    while (ffn.on_cpu_s(static_cast<double>(crossing)) <=
           ffn.on_gpu_s(static_cast<double>(crossing)))
      ++crossing;
    const auto placed_at = [&](std::int64_t batch) {
      return best_placement(costs, BatchShape::decode(batch, 512), in_ddr, Overlap::none)
          .placement.to_string();
    };
    EXPECT_EQ(placed_at(1000), "011011") << num_experts;
    EXPECT_EQ(placed_at(crossing - 1), "011011") << num_experts << " at " << crossing;
    EXPECT_EQ(placed_at(crossing), "011000") << num_experts << " at " << crossing;
  }
  // Dense, the GPU computes both halves of the layer from one batch on.
  const AnalyticModel dense(load_profile("spr-a100"), opt_175b);
  for (const std::int64_t batch : {1, 500, 800, 850, 1000, 2000, 8000}) {
    const LayerCost best =
        best_placement(dense, BatchShape::decode(batch, 512), in_ddr, Overlap::none);
    EXPECT_EQ(best.placement.to_string(), batch < 825 ? "111111" : "011000") << batch;
  }
}

}  // namespace
}  // namespace sluice
