#include "perfmodels/footprint.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

using test::ToyCosts;

/// A layer of ToyCosts: 1200 elements of matrices (QKV 300, output 100, FC 400 each), and of
/// vectors two norms of 2 x 10, biases of 30, 10, 40 and 10; K and V of a token take 40 bytes.
constexpr double vector_bytes = 2 * (2 * 2 * 10 + 30 + 10 + 40 + 10);
constexpr double layer_bytes = 2400 + vector_bytes;

const Workload workload = {.batch = 3, .input_tokens = 6, .output_tokens = 2};

MemoryPlan all_in(Tier weights, Tier kv) {
  return {.layers = std::vector<LayerHomes>(4, LayerHomes::all(weights, kv)),
          .embedding = Tier::ddr,
          .lm_head = Tier::hbm};
}

Footprint footprint_of(const MemoryPlan& memory, std::array<Pipeline, 2> pipelines = {},
                       const ToyCosts& costs = ToyCosts(4)) {
  return footprint(costs, memory, pipelines, workload);
}

/// A GPU whose HBM has so many bytes.
class LimitedCosts : public ToyCosts {
 public:
  explicit LimitedCosts(std::uint64_t hbm_bytes) : ToyCosts(4), hbm_bytes_(hbm_bytes) {}
  std::uint64_t capacity_bytes(Tier tier) const override {
    return tier == Tier::hbm ? hbm_bytes_ : std::uint64_t{1} << 40;
  }

 private:
  std::uint64_t hbm_bytes_;
};

TEST(FootprintTest, PrefillIsCutIntoAsFewMiniBatchesAsFit) {
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  const Workload many = {.batch = 100, .input_tokens = 6, .output_tokens = 1};
  const auto fits = [&](const LimitedCosts& costs, std::int64_t parts) {
    return fits_hbm(costs, memory, {Pipeline{.mini_batches = parts}, Pipeline{}}, many);
  };
  const std::array<Pipeline, 2> whole{};
  const double all = footprint(LimitedCosts(1), memory, whole, many).total(Tier::hbm);
  std::set<std::int64_t> found;
  for (double bytes = all + 1; bytes > 100; bytes *= 0.9) {
    const LimitedCosts costs(static_cast<std::uint64_t>(bytes));
    std::array<Pipeline, 2> pipelines{};
    const bool cut = cut_prefill_to_fit(costs, memory, many, pipelines);
    const std::int64_t parts = pipelines[0].mini_batches;
    found.insert(parts);
    EXPECT_EQ(cut, fits(costs, parts));
    EXPECT_TRUE(cut || parts == many.batch) << parts;
    EXPECT_FALSE(parts > 1 && fits(costs, parts - 1)) << parts;
  }
  EXPECT_GT(found.size(), 4U);
  EXPECT_EQ(*found.begin(), 1);
}

/// The GPU may attend in decode with KV that lives in DDR: two layers' KV then pass through HBM,
/// 100 sequences' page of 16 tokens of 40 bytes.
TEST(FootprintTest, CutPrefillLeavesRoomForKvThatPasses) {
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  const Workload many = {.batch = 100, .input_tokens = 6, .output_tokens = 2};
  constexpr double passing = 2 * 100 * 16 * 40;
  std::array<Pipeline, 2> most_cut{};
  most_cut[0].mini_batches = many.batch;
  const double least = footprint(LimitedCosts(1), memory, most_cut, many).total(Tier::hbm);
  for (const double more : {-1.0, 1.0}) {
    std::array<Pipeline, 2> pipelines{};
    const LimitedCosts costs(static_cast<std::uint64_t>(least + passing + more));
    EXPECT_EQ(cut_prefill_to_fit(costs, memory, many, pipelines), more > 0) << more;
  }
}

TEST(FootprintTest, WeightsCountWhereTheyLive) {
  MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  memory.layers[0] = LayerHomes::all(Tier::hbm, Tier::hbm);
  memory.layers[1][WeightKind::fc2] = Tier::cxl;
  const Footprint found = footprint_of(memory);
  // Tables of 50 x 10 elements, 1000 bytes: the head in HBM, the embedding in DDR.
  EXPECT_DOUBLE_EQ(found.weights[Tier::hbm], layer_bytes + 1000);
  EXPECT_DOUBLE_EQ(found.weights[Tier::cxl], 800);
  EXPECT_DOUBLE_EQ(found.weights[Tier::ddr], 3 * layer_bytes - 800 + 1000);
  EXPECT_EQ(found.weights[Tier::disk], 0);
}

TEST(FootprintTest, WhatComesFromADiskPassesThroughDdr) {
  MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  memory.layers[1] = LayerHomes::all(Tier::disk, Tier::ddr);
  memory.layers[2][WeightKind::fc2] = Tier::disk;
  std::array<Pipeline, 2> pipelines;
  pipelines.fill({.prefetch = Prefetch::layer});
  EXPECT_DOUBLE_EQ(footprint_of(memory, pipelines).staging[Tier::ddr], 2 * 2400);
  pipelines.fill({.prefetch = Prefetch::half_layer});
  EXPECT_DOUBLE_EQ(footprint_of(memory, pipelines).staging[Tier::ddr], 2400);
  EXPECT_EQ(footprint_of(all_in(Tier::ddr, Tier::ddr), pipelines).staging[Tier::ddr], 0);
}

TEST(FootprintTest, PositionsAndProjectionsCountWithTheirTables) {
  ToyCosts costs(4);
  costs.model().learned_positions = 7;
  costs.model().embed_size = 5;
  const Footprint found = footprint_of(all_in(Tier::ddr, Tier::ddr), {}, costs);
  // Tables of 50 x 5, projections of 5 x 10, positions of 7 x 10.
  EXPECT_DOUBLE_EQ(found.weights[Tier::hbm], 2 * (250 + 50));
  EXPECT_DOUBLE_EQ(found.weights[Tier::ddr], 4 * layer_bytes + 2 * (250 + 50 + 70));
}

TEST(FootprintTest, KvIsThatOfFinishedSequences) {
  MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  memory.layers[2].kv = Tier::hbm;
  const Footprint found = footprint_of(memory);
  // 3 sequences of 8 tokens, a page of 16, 40 bytes each and layer.
  EXPECT_DOUBLE_EQ(found.kv[Tier::hbm], 1920);
  EXPECT_DOUBLE_EQ(found.kv[Tier::ddr], 3 * 1920);
}

TEST(FootprintTest, NarrowWeightsTakeLess) {
  ToyCosts costs(4);
  costs.model().weight_bits = 4.5;
  const Footprint found = footprint_of(all_in(Tier::ddr, Tier::ddr), {}, costs);
  EXPECT_DOUBLE_EQ(found.weights[Tier::ddr], 4 * layer_bytes * 4.5 / 16 + 1000);
}

TEST(FootprintTest, TablesAreNotNarrowerThan16Bits) {
  for (const auto& [bits, table_bytes] : {std::pair(4.5, 1000.0), {16.0, 1000.0}, {32.0, 2000.0}}) {
    ToyCosts costs(4);
    costs.model().weight_bits = bits;
    MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
    memory.embedding = Tier::cxl;
    memory.lm_head = Tier::disk;
    const Footprint found = footprint_of(memory, {}, costs);
    EXPECT_DOUBLE_EQ(found.weights[Tier::cxl], table_bytes) << bits;
    EXPECT_DOUBLE_EQ(found.weights[Tier::disk], table_bytes) << bits;
  }
}

TEST(FootprintTest, StagingHoldsTwoUnits) {
  const auto staging = [](const MemoryPlan& memory, Prefetch prefetch) {
    return footprint_of(memory, {Pipeline{.prefetch = prefetch}, Pipeline{.prefetch = prefetch}})
        .staging[Tier::hbm];
  };
  const MemoryPlan streamed = all_in(Tier::ddr, Tier::hbm);
  // Two layers; one half of attention (800) and one of FFN (1600); one layer.
  EXPECT_DOUBLE_EQ(staging(streamed, Prefetch::layer), 2 * 2400);
  EXPECT_DOUBLE_EQ(staging(streamed, Prefetch::half_layer), 2400);
  EXPECT_DOUBLE_EQ(staging(streamed, Prefetch::none), 2400);
  MemoryPlan helm = streamed;
  for (LayerHomes& homes : helm.layers) homes[WeightKind::fc1] = Tier::hbm;
  EXPECT_DOUBLE_EQ(staging(helm, Prefetch::half_layer), 1600);
  EXPECT_EQ(staging(all_in(Tier::hbm, Tier::hbm), Prefetch::layer), 0);
  // The larger of the phases'.
  EXPECT_DOUBLE_EQ(footprint_of(streamed, {Pipeline{.prefetch = Prefetch::half_layer}, Pipeline{}})
                       .staging[Tier::hbm],
                   2 * 2400);
}

TEST(DiskKvStagingTest, IsTwoLayersOrThree) {
  const MemoryPlan memory = all_in(Tier::ddr, Tier::disk);
  const auto staging = [&](const MemoryPlan& plan, Prefetch prefetch) {
    return disk_kv_staging_bytes(ToyCosts().model(), plan, prefetch, workload);
  };
  // 3 sequences of 8 tokens, a page of 16, 40 bytes each and layer: the layer's, its copy, the next
  // one's.
  EXPECT_DOUBLE_EQ(staging(memory, Prefetch::layer), 3 * 1920);
  EXPECT_DOUBLE_EQ(staging(memory, Prefetch::half_layer), 2 * 1920);
  EXPECT_EQ(staging(all_in(Tier::disk, Tier::ddr), Prefetch::layer), 0);
  MemoryPlan some_in_hbm = memory;
  some_in_hbm.hbm_requests = 2;
  EXPECT_DOUBLE_EQ(staging(some_in_hbm, Prefetch::layer), 3 * 640);
  const Footprint found = footprint_of(memory, {Pipeline{}, Pipeline{}});
  EXPECT_DOUBLE_EQ(found.kv[Tier::disk], 4 * 1920);
  EXPECT_EQ(found.kv[Tier::ddr], 0);
  EXPECT_DOUBLE_EQ(found.staging[Tier::ddr], 3 * 1920);
}

// ---- KV on its way to the GPU

/// Decode of all three sequences, four layers alike.
Chain decode_chain(const char* placement) {
  return {.parts = {{.shape = BatchShape::decode(3, 7)}},
          .placements = std::vector<Placement>(4, *Placement::parse(placement))};
}

double passing(const MemoryPlan& memory, const std::vector<Chain>& decode,
               Prefetch prefetch = Prefetch::none) {
  return passing_kv_bytes(ToyCosts().model(), memory, decode, prefetch, workload);
}

TEST(PassingKvTest, IsThatOfOneLayerOrOfTwo) {
  const MemoryPlan memory = all_in(Tier::hbm, Tier::ddr);
  // 3 sequences of 8 tokens, a page of 16, 40 bytes each and layer.
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("000000")}, Prefetch::none), 1920);
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("000000")}, Prefetch::half_layer), 1920);
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("000000")}, Prefetch::layer), 2 * 1920);
}

TEST(PassingKvTest, IsWhatTheGpuReads) {
  const MemoryPlan memory = all_in(Tier::hbm, Tier::ddr);
  EXPECT_EQ(passing(memory, {decode_chain("011000")}), 0);
  EXPECT_EQ(passing(memory, {decode_chain("111111")}), 0);
  // It wants V alone, or K alone: the slab crosses.
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("010000")}), 1920);
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("101111")}), 1920);
}

TEST(PassingKvTest, IsThatOfLayersWhoseKvLivesElsewhere) {
  MemoryPlan memory = all_in(Tier::hbm, Tier::hbm);
  EXPECT_EQ(passing(memory, {decode_chain("000000")}), 0);
  memory.layers[3].kv = Tier::cxl;
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("000000")}), 1920);
  memory.layers[1].kv = Tier::ddr;
  EXPECT_DOUBLE_EQ(passing(memory, {decode_chain("000000")}, Prefetch::layer), 2 * 1920);
}

TEST(PassingKvTest, SumsTheChainsAndTheirParts) {
  const MemoryPlan memory = all_in(Tier::hbm, Tier::ddr);
  Chain mixed = decode_chain("000000");
  mixed.parts = {{.shape = BatchShape::prefill(1, 6)},
                 {.shape = BatchShape::decode(1, 7)},
                 {.shape = BatchShape::decode(2, 7), .attention = Device::cpu},
                 {.shape = BatchShape::decode(2, 7), .kv = Tier::hbm}};
  EXPECT_DOUBLE_EQ(passing(memory, {mixed}), 640);
  EXPECT_DOUBLE_EQ(passing(memory, {mixed, decode_chain("000000")}), 640 + 1920);
}

TEST(PassingKvTest, IsStagedBesideTheWeights) {
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  const auto staging = [&](Prefetch prefill, Prefetch in_decode) {
    return footprint(ToyCosts(4), memory,
                     {Pipeline{.prefetch = prefill}, Pipeline{.prefetch = in_decode}}, workload,
                     passing(memory, {decode_chain("000000")}, in_decode))
        .staging[Tier::hbm];
  };
  EXPECT_DOUBLE_EQ(staging(Prefetch::layer, Prefetch::layer), 2 * 2400 + 2 * 1920);
  EXPECT_DOUBLE_EQ(staging(Prefetch::none, Prefetch::none), 2400 + 1920);
  // Prefill brings no KV, but more weights.
  EXPECT_DOUBLE_EQ(staging(Prefetch::layer, Prefetch::none), 2 * 2400);
  ToyCosts no_gpu(4);
  no_gpu.has_gpu = false;
  EXPECT_EQ(footprint(no_gpu, memory, {}, workload, 1920).staging[Tier::hbm], 0);
}

TEST(FootprintTest, AHeadThatCrossesNeedsRoomAsWell) {
  MemoryPlan memory = all_in(Tier::hbm, Tier::hbm);
  memory.lm_head = Tier::ddr;
  EXPECT_EQ(footprint_of(memory).staging[Tier::hbm], 0);
  memory.lm_head_device = Device::gpu;
  EXPECT_DOUBLE_EQ(footprint_of(memory).staging[Tier::hbm], 1000);
}

TEST(FootprintTest, FirstRequestsMayHaveTheirKvInHbm) {
  MemoryPlan memory = all_in(Tier::hbm, Tier::ddr);
  memory.hbm_requests = 1;
  const Footprint found = footprint_of(memory);
  EXPECT_DOUBLE_EQ(found.kv[Tier::hbm], 4 * 640);
  EXPECT_DOUBLE_EQ(found.kv[Tier::ddr], 4 * 1280);
  memory.hbm_requests = 9;  // more than there are
  EXPECT_EQ(footprint_of(memory).kv[Tier::ddr], 0);
}

TEST(FootprintTest, NothingIsStagedWithoutAGpu) {
  ToyCosts costs(4);
  costs.has_gpu = false;
  MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  memory.lm_head = Tier::ddr;
  const Footprint found = footprint_of(memory, {}, costs);
  EXPECT_EQ(found.total(Tier::hbm), 0);
}

TEST(FootprintTest, ActivationsAreThoseOfOneMiniBatch) {
  // A row: residual 40 bytes, input 20, q, k, v 60, attention's output 20, the FFN's middle 80.
  EXPECT_DOUBLE_EQ(activation_bytes(ToyCosts().model(), 1), 220);
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  // 18 rows of a prompt; in two parts, the larger of 2 sequences.
  EXPECT_DOUBLE_EQ(footprint_of(memory).activations[Tier::hbm], 18 * 220);
  const Footprint halves = footprint_of(memory, {Pipeline{.mini_batches = 2}, Pipeline{}});
  EXPECT_DOUBLE_EQ(halves.activations[Tier::hbm], 12 * 220);
  // There the residuals of all 18 rows wait between layers, 40 bytes each.
  EXPECT_DOUBLE_EQ(halves.activations[Tier::ddr], 12 * 220 + 18 * 40);
}

TEST(FootprintTest, ActivationsAreThoseOfTheRequestsAtOnce) {
  const MemoryPlan memory = all_in(Tier::ddr, Tier::ddr);
  const auto activations = [&](std::int64_t at_once, std::int64_t mini_batches) {
    return footprint_of(
               memory,
               {Pipeline{.mini_batches = mini_batches, .requests_at_once = at_once}, Pipeline{}})
        .activations;
  };
  // Two prompts of 6 rows, while the third request may decode already.
  EXPECT_DOUBLE_EQ(activations(2, 1)[Tier::hbm], (12 + 3) * 220);
  EXPECT_DOUBLE_EQ(activations(2, 2)[Tier::hbm], (6 + 3) * 220);
  // In DDR also the residuals of all 12, and their new KV in four layers, 40 bytes each.
  EXPECT_DOUBLE_EQ(activations(2, 2)[Tier::ddr], (6 + 3) * 220 + 12 * 40 + 12 * 4 * 40);
  for (const std::int64_t all : {0, 3, 9})
    EXPECT_DOUBLE_EQ(activations(all, 1)[Tier::hbm], 18 * 220);
}

TEST(FootprintTest, LogitsCountWhereTheHeadRuns) {
  const Workload short_ones = {.batch = 3, .input_tokens = 1, .output_tokens = 2};
  const auto activations = [&](Tier head) {
    MemoryPlan memory = all_in(Tier::hbm, Tier::hbm);
    memory.lm_head = head;
    return footprint(ToyCosts(4), memory, {}, short_ones).activations;
  };
  // Three rows, and three times 50 logits of four bytes.
  EXPECT_DOUBLE_EQ(activations(Tier::hbm)[Tier::hbm], 3 * 220 + 600);
  EXPECT_DOUBLE_EQ(activations(Tier::hbm)[Tier::ddr], 3 * 220);
  EXPECT_DOUBLE_EQ(activations(Tier::ddr)[Tier::hbm], 3 * 220);
  EXPECT_DOUBLE_EQ(activations(Tier::ddr)[Tier::ddr], 3 * 220 + 600);
}

TEST(FootprintTest, GatesAndSharedHeadsChangeARow) {
  ModelDimensions model = ToyCosts().model();
  model.gated_ffn = true;
  model.num_kv_heads = 1;
  // 40 + 20, q 20, k and v 10 each, output 20, gate and middle 80 each.
  EXPECT_DOUBLE_EQ(activation_bytes(model, 2), 2 * 280);
}

TEST(FootprintTest, TotalIsTheSum) {
  const Footprint found = footprint_of(all_in(Tier::ddr, Tier::hbm));
  EXPECT_DOUBLE_EQ(found.total(Tier::hbm), 1000 + 4 * 1920 + 4800 + 18 * 220);
}

}  // namespace
}  // namespace sluice
