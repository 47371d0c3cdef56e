// HeLM's and FlexGen's weights against the papers' figures.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "schedulers/percentages.h"
#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

using test::percent_in;
using test::Planned;
using Options = std::map<std::string, std::string>;

constexpr Workload helm_workload = {.batch = 1, .input_tokens = 128, .output_tokens = 21};

double block_percent(const ModelDimensions& model, std::span<const WeightKind> block,
                     const LayerHomes& homes, Tier tier) {
  double here = 0;
  double all = 0;
  for (const WeightKind kind : block) {
    all += weight_elements(model, kind);
    if (homes[kind] == tier) here += weight_elements(model, kind);
  }
  return 100 * here / all;
}

/// FlexGen's rule as HeLM's Listing 2 runs it, over FlexGen's own list of tensors: biases and norms
/// one by one, where percentages.h has one tensor of them.
std::vector<double> listing_2(const std::vector<double>& sizes,
                              const std::vector<double>& percents) {
  std::vector<double> shares(percents.size());
  double total = 0;
  for (const double size : sizes) total += size;
  double before = 0;
  for (const double size : sizes) {
    const double middle = 100 * (before + size / 2) / total;
    before += size;
    std::size_t choice = 0;
    for (double end = percents[0]; choice + 1 < percents.size() && middle >= end;)
      end += percents[++choice];
    shares[choice] += size / total;
  }
  return shares;
}

// ---- Listing 2

/// Figure 7c and section V-A: (0, 80, 20) asked for, (0, 91.7, 8.3) got.
TEST(FlexGenWeightsTest, TwentyPercentBecomeATwelfth) {
  Planned planned("flexgen", {{"gpu_percent", "20"}}, "icelake-a100-memorymode", "opt-175b", 4.5);
  const MemoryPlan memory = planned.memory(helm_workload);
  const ModelDimensions& model = planned.costs.model();
  EXPECT_NEAR(percent_in(model, memory, Tier::hbm), 8.3, 0.1);
  EXPECT_NEAR(percent_in(model, memory, Tier::ddr), 91.7, 0.1);
  EXPECT_NEAR(block_percent(model, attention_block, memory.layers[0], Tier::hbm), 25, 0.1);
  EXPECT_EQ(block_percent(model, ffn_block, memory.layers[0], Tier::hbm), 0);
}

/// Figure 7b: (65, 15, 20) of disk, host and GPU become (58.6, 33.1, 8.3).
TEST(FlexGenWeightsTest, SixtyFivePercentOnDiskBecomeSevenTwelfths) {
  Planned planned("flexgen", {{"gpu_percent", "20"}, {"disk_percent", "65"}}, "icelake-a100-ssd",
                  "opt-175b");
  const MemoryPlan memory = planned.memory(helm_workload);
  const ModelDimensions& model = planned.costs.model();
  const double disk = percent_in(model, memory, Tier::disk);
  const double host = percent_in(model, memory, Tier::ddr);
  const double gpu = percent_in(model, memory, Tier::hbm);
  std::printf("(65, 15, 20): paper (58.6, 33.1, 8.3), ours (%.1f, %.1f, %.1f)\n", disk, host, gpu);
  // By hand, of 12 matrices: query, key and FC1 at the middles 12.5, 37.5 and 25 lie below 65;
  // value (62.5) too; the output projection (87.5) is the GPU's, FC2 (75) the host's: 7, 4 and 1.
  EXPECT_NEAR(disk, 100 * 7 / 12.0, 0.1);
  EXPECT_NEAR(host, 100 * 4 / 12.0, 0.1);
  EXPECT_NEAR(gpu, 100 * 1 / 12.0, 0.1);
  // The paper's 58.6 and 33.1 within a third of a percent: its embeddings count as well.
  EXPECT_NEAR(disk, 58.6, 0.35);
  EXPECT_NEAR(host, 33.1, 0.35);
}

TEST(FlexGenWeightsTest, OneTensorOfVectorsPlacesAsFlexGensList) {
  // FlexGen's attention: q, k, v, out with their biases, then the norm; FFN: FC1, bias, FC2, bias,
  // norm.
  const double d = 12288;
  const std::vector<double> attention = {d * d, d, d * d, d, d * d, d, d * d, d, d, d};
  const std::vector<double> ffn = {4 * d * d, 4 * d, 4 * d * d, d, d, d};
  const ModelDimensions model = test::dimensions_of("opt-175b");
  for (double gpu = 0; gpu <= 100; gpu += 5) {
    for (double disk = 0; disk + gpu <= 100; disk += 5) {
      const TierPercentages wanted = {.tiers = {Tier::disk, Tier::ddr, Tier::hbm},
                                      .percents = {disk, 100 - disk - gpu, gpu}};
      LayerHomes homes;
      allocate_by_middle(model, attention_block, wanted, homes);
      allocate_by_middle(model, ffn_block, wanted, homes);
      const std::vector<double> percents = {disk, 100 - disk - gpu, gpu};
      const std::vector<double> mha_shares = listing_2(attention, percents);
      const std::vector<double> ffn_shares = listing_2(ffn, percents);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(block_percent(model, attention_block, homes, wanted.tiers[i]),
                    100 * mha_shares[i], 0.1)
            << disk << ' ' << gpu;
        EXPECT_NEAR(block_percent(model, ffn_block, homes, wanted.tiers[i]), 100 * ffn_shares[i],
                    0.1)
            << disk << ' ' << gpu;
      }
    }
  }
}

/// LIA section 5.2: FlexGen keeps 58 % of OPT-30B's weights at B = 1, L = 2016, "32 GB".
TEST(FlexGenWeightsTest, KeepsSevenTwelfthsOfOpt30b) {
  Planned planned("flexgen", {}, "spr-a100", "opt-30b");
  const MemoryPlan memory = planned.memory({.batch = 1, .input_tokens = 2016, .output_tokens = 32});
  const double kept = percent_in(planned.costs.model(), memory, Tier::hbm);
  std::printf("flexgen keeps %.1f %% of opt-30b, paper 58\n", kept);
  EXPECT_NEAR(kept, 100 * 7 / 12.0, 0.1);
}

TEST(FlexGenPlacementTest, RunsOnTheGpuButForDecodesAttention) {
  Planned lia("flexgen", {}, "spr-a100", "opt-30b");
  EXPECT_EQ(lia.place(BatchShape::prefill(4, 100)), "000000");
  EXPECT_EQ(lia.place(BatchShape::decode(4, 100)), "011000");
  Planned helm("flexgen", {{"attention", "gpu"}}, "spr-a100", "opt-30b");
  EXPECT_EQ(helm.place(BatchShape::decode(4, 100)), "000000");
  EXPECT_EQ(helm.memory({}).layers[0].kv, Tier::hbm);
}

TEST(FlexGenOptionsTest, WrongValuesAreSaid) {
  const std::pair<Options, std::string> cases[] = {
      {{{"gpu_percent", "120"}}, "gpu_percent=120: expected a number from 0 to 100"},
      {{{"gpu_percent", "20%"}}, "gpu_percent=20%: expected a number from 0 to 100"},
      {{{"gpu_percent", "60"}, {"disk_percent", "60"}}, "together more than 100"},
      {{{"attention", "tpu"}}, "attention=tpu: expected one of cpu, gpu"},
      {{{"overlap", "1"}}, "overlap=1: expected one of on, off"},
      {{{"gpu_procent", "20"}}, "policy flexgen has no such option; it has gpu_percent"},
  };
  for (const auto& [options, part] : cases) {
    try {
      const LoadedPolicy policy("flexgen", options, {SLUICE_SHIPPED_DIR});
      ADD_FAILURE() << "no error, expected " << part;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

// ---- Listing 3

/// Figure 10: a third of the weights, FC1 with all norms and biases.
TEST(HelmWeightsTest, FirstFcMatrixAndVectorsLiveOnTheGpu) {
  Planned planned("helm", {}, "icelake-a100-memorymode", "opt-175b", 4.5);
  const MemoryPlan memory = planned.memory(helm_workload);
  EXPECT_NEAR(percent_in(planned.costs.model(), memory, Tier::hbm), 33.3, 0.1);
  for (const LayerHomes& homes : memory.layers) {
    EXPECT_EQ(homes[WeightKind::fc1], Tier::hbm);
    EXPECT_EQ(homes[WeightKind::vectors], Tier::hbm);
    for (const WeightKind kind : {WeightKind::query, WeightKind::key, WeightKind::value,
                                  WeightKind::out_proj, WeightKind::fc2})
      EXPECT_EQ(homes[kind], Tier::ddr);
    EXPECT_EQ(homes.kv, Tier::hbm);
  }
}

/// Section V-B, Figure 11a: of the FFN's loading 49.33 % less, of attention's 32.55 % more.
TEST(HelmWeightsTest, MovesLoadsFromTheFfnToAttention) {
  Planned helm("helm", {}, "icelake-a100-memorymode", "opt-175b", 4.5);
  Planned flexgen("flexgen", {{"gpu_percent", "20"}, {"attention", "gpu"}},
                  "icelake-a100-memorymode", "opt-175b", 4.5);
  const auto loads = [](Planned& planned) {
    const MemoryPlan memory = planned.memory(helm_workload);
    const LayerCost cost = layer_cost(planned.costs, Placement(Device::gpu),
                                      BatchShape::decode(1, 138), memory.layers[0]);
    double mha_s = 0;
    double ffn_s = 0;
    for (std::size_t i = 0; i < 6; ++i) (i < 4 ? mha_s : ffn_s) += cost.sublayers[i].stored_s;
    return std::pair(mha_s, ffn_s);
  };
  const auto [helm_mha_s, helm_ffn_s] = loads(helm);
  const auto [flexgen_mha_s, flexgen_ffn_s] = loads(flexgen);
  std::printf(
      "HeLM against FlexGen: FFN %+.1f %% (paper -49.3), attention %+.1f %% (paper +32.6)\n",
      100 * (helm_ffn_s / flexgen_ffn_s - 1), 100 * (helm_mha_s / flexgen_mha_s - 1));
  EXPECT_NEAR(helm_ffn_s / flexgen_ffn_s, 0.5067, 0.01);
  EXPECT_NEAR(helm_mha_s / flexgen_mha_s, 1.3255, 0.01);
}

TEST(AllCpuTest, KeepsNoWeightsOnTheGpu) {
  Planned planned("all-cpu", {}, "icelake-a100-memorymode", "opt-175b", 4.5);
  const MemoryPlan memory = planned.memory(helm_workload);
  EXPECT_EQ(percent_in(planned.costs.model(), memory, Tier::hbm), 0);
  EXPECT_EQ(memory.layers[0].kv, Tier::hbm);
  EXPECT_EQ(planned.place(BatchShape::decode(44, 138)), "000000");
}

std::int64_t largest_batch(Planned& planned) {
  return largest_fitting_batch(planned.policy.policy(), planned.costs, helm_workload);
}

/// Section V-C: the batch grows from 8 to 44 when the weights leave HBM; a sequence takes 0.70 GB.
///   16 bits     12 fit beside 29 GB of weights, 3.6 of staging and the head: 8 is the power of two
///   4.5 bits    the paper stays at 8, where 45 fit
///   in DDR      44 leave 9 of the 40 GB; FlexGen's widened halves of layers take 3.6 of these
/// Why 44 is not explained. Nothing is fitted, only the order is asserted.
TEST(HelmBatchTest, WeightsInHostMemoryLeaveRoomForMoreSequences) {
  for (const double bits : {16.0, 4.5}) {
    Planned flexgen("flexgen", {{"gpu_percent", "20"}, {"attention", "gpu"}},
                    "icelake-a100-memorymode", "opt-175b", bits);
    Planned helm("helm", {}, "icelake-a100-memorymode", "opt-175b", bits);
    Planned all_cpu("all-cpu", {}, "icelake-a100-memorymode", "opt-175b", bits);
    const std::int64_t with_flexgen = largest_batch(flexgen);
    const std::int64_t with_helm = largest_batch(helm);
    const std::int64_t with_all_cpu = largest_batch(all_cpu);
    std::printf(
        "largest batch, %g bits: flexgen %lld (paper 8), helm %lld, all-cpu %lld (paper 44)\n",
        bits, static_cast<long long>(with_flexgen), static_cast<long long>(with_helm),
        static_cast<long long>(with_all_cpu));
    EXPECT_LT(with_helm, with_flexgen);
    EXPECT_LT(with_flexgen, with_all_cpu);
    EXPECT_GT(with_all_cpu, 40);
  }
}

}  // namespace
}  // namespace sluice
