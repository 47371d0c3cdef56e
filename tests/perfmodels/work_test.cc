// The work that must be done, against figures worked by hand.
#include "perfmodels/work.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sluice {
namespace {

using Work = std::map<std::string, std::pair<double, double>>;  // name -> bytes, FLOP

Work work_of(const ModelDimensions& model, const std::vector<SequenceWork>& sequences) {
  Work work;
  for (const StageWork& stage : iteration_work(model, sequences)) {
    work[std::string(stage.name)] = {stage.bytes, stage.flops};
  }
  return work;
}

/// Llama-like: q = 4 heads x 2 = 8, kv = 2 heads x 2 = 4, gated.
const ModelDimensions gqa = {.num_layers = 2,
                             .hidden_size = 8,
                             .embed_size = 8,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 2,
                             .ffn_size = 16,
                             .vocab_size = 32,
                             .sliding_window_tokens = 0,
                             .gated_ffn = true,
                             .kv_element_bytes = 2};

TEST(WeightElementsTest, OfAGatedShapeByHand) {
  EXPECT_EQ(weight_elements(gqa, WeightKind::query), 8 * 8);
  EXPECT_EQ(weight_elements(gqa, WeightKind::key), 8 * 4);
  EXPECT_EQ(weight_elements(gqa, WeightKind::out_proj), 8 * 8);
  EXPECT_EQ(weight_elements(gqa, WeightKind::fc1), 2 * 8 * 16);  // gate and up
  EXPECT_EQ(weight_elements(gqa, WeightKind::fc2), 16 * 8);
  EXPECT_EQ(weight_elements(gqa, WeightKind::vectors), 2 * 8);  // two norms
  ModelDimensions plain = gqa;
  plain.gated_ffn = false;
  EXPECT_EQ(weight_elements(plain, WeightKind::fc1), 8 * 16);
  ModelDimensions experts = gqa;
  experts.num_experts = 3;
  EXPECT_EQ(weight_elements(experts, WeightKind::fc1), 3 * 2 * 8 * 16);
}

TEST(IterationWorkTest, PrefillOfAGroupedQueryGatedShape) {
  // 3 rows behind 2 cached tokens: they see 3 + 4 + 5 = 12 keys, and read K and V of 5 tokens. In
  // the second layer, the last, K and V of 3 rows, and all else of the last row, which sees 5 keys.
  const Work expected = {
      {"qkv", {2 * 128 * 2, 2 * (3 * 128 + 3 * 64 + 64)}},  // 8 x (8 + 4 + 4) weights a layer
      {"attention",
       {2 * 5 * 2 * 4 * 2, 4 * 8 * (12 + 5)}},       // 2 x 4 elements a token, 4 x 8 FLOP a key
      {"out_proj", {2 * 64 * 2, 2 * (3 + 1) * 64}},  // 8 x 8
      {"fc1", {2 * 256 * 2, 2 * (3 + 1) * 256}},     // gate and up: 2 x 8 x 16
      {"fc2", {2 * 128 * 2, 2 * (3 + 1) * 128}},     // 16 x 8
      {"lm_head", {256 * 2, 2 * 1 * 256}},           // 8 x 32, one row
  };
  EXPECT_EQ(work_of(gqa, {{.rows = 3, .context = 2, .logit_rows = 1}}), expected);
}

TEST(IterationWorkTest, DecodeOfAGroupedQueryGatedShape) {
  // Two sequences, one row each: the first sees 10 keys, the second 1; 11 tokens are read.
  const Work expected = {
      {"qkv", {512, 2 * 2 * 2 * 128}},     {"attention", {2 * 11 * 2 * 4 * 2, 2 * 4 * 8 * 11}},
      {"out_proj", {256, 2 * 2 * 2 * 64}}, {"fc1", {1024, 2 * 2 * 2 * 256}},
      {"fc2", {512, 2 * 2 * 2 * 128}},     {"lm_head", {512, 2 * 2 * 256}},
  };
  EXPECT_EQ(work_of(gqa, {{.rows = 1, .context = 9}, {.rows = 1, .context = 0}}), expected);
}

/// OPT: as many KV heads as heads, ffn = 4 d. LIA Table 1 with d = 16, one layer.
const ModelDimensions opt = {.num_layers = 1,
                             .hidden_size = 16,
                             .embed_size = 16,
                             .num_heads = 4,
                             .num_kv_heads = 4,
                             .head_dim = 4,
                             .ffn_size = 64,
                             .vocab_size = 100,
                             .sliding_window_tokens = 0,
                             .gated_ffn = false,
                             .kv_element_bytes = 2};

TEST(IterationWorkTest, PrefillOfAnOptShapeIsLiasTable1ButForTheMask) {
  // B = 2 sequences of L = 5 tokens: BL = 10, d^2 = 256. LIA's attention computes all L^2 = 25
  // scores of a sequence (QK^T and SV: 4 x 2 x 25 x 16 FLOP); the causal half has 15 of them. All
  // rows need logits, else the one layer would compute fewer.
  const Work expected = {
      {"qkv", {6 * 256, 6 * 10 * 256}},  // 1536 bytes, 15360 FLOP
      {"attention", {2 * (2 * 10 * 16), 4 * 2 * 15 * 16}},
      {"out_proj", {2 * 256, 2 * 10 * 256}},
      {"fc1", {8 * 256, 8 * 10 * 256}},
      {"fc2", {8 * 256, 8 * 10 * 256}},
      {"lm_head", {2 * 1600, 2 * 10 * 1600}},
  };
  EXPECT_EQ(work_of(opt, {{.rows = 5, .logit_rows = 5}, {.rows = 5, .logit_rows = 5}}), expected);
}

TEST(IterationWorkTest, DecodeOfAnOptShapeIsLiasTable1) {
  // B = 3 at L = 7 (the new token included): 2 x 2BLd bytes and FLOP for QK^T and SV.
  const Work expected = {
      {"qkv", {6 * 256, 6 * 3 * 256}},
      {"attention", {2 * (2 * 3 * 7 * 16), 2 * (2 * 3 * 7 * 16)}},
      {"out_proj", {2 * 256, 2 * 3 * 256}},
      {"fc1", {8 * 256, 8 * 3 * 256}},
      {"fc2", {8 * 256, 8 * 3 * 256}},
      {"lm_head", {2 * 1600, 2 * 3 * 1600}},
  };
  EXPECT_EQ(work_of(opt, std::vector<SequenceWork>(3, {.rows = 1, .context = 6})), expected);
}

TEST(IterationWorkTest, TheLastLayerOfRowsThatDrawNoTokenHasOnlyTheirKeysAndValues) {
  const Work work = work_of(opt, {{.rows = 4, .context = 0, .logit_rows = 0}});
  EXPECT_EQ(work.at("qkv"), std::pair(2.0 * 2 * 256, 2.0 * 4 * 2 * 256));
  for (const char* stage : {"attention", "out_proj", "fc1", "fc2"})
    EXPECT_EQ(work.at(stage), std::pair(0.0, 0.0)) << stage;
  EXPECT_EQ(work.count("lm_head"), 0U);
}

TEST(IterationWorkTest, ASlidingWindowHidesKeysAndTokens) {
  ModelDimensions model = opt;
  model.sliding_window_tokens = 4;
  // Rows at positions 2, 3, 4, 5 see 3, 4, 4, 4 keys = 15; the first sees tokens 0..2: 6 tokens.
  const Work across = work_of(model, {{.rows = 4, .context = 2, .logit_rows = 4}});
  EXPECT_EQ(across.at("attention"), std::pair(6.0 * 2 * 16 * 2, 4.0 * 16 * 15));
  // Rows at positions 10 and 11 see tokens 7..10 and 8..11.
  const Work beyond = work_of(model, {{.rows = 2, .context = 10, .logit_rows = 2}});
  EXPECT_EQ(beyond.at("attention"), std::pair(5.0 * 2 * 16 * 2, 4.0 * 16 * 8));
}

TEST(IterationWorkTest, AWindowIsALayersAndNotAModels) {
  ModelDimensions model = opt;
  model.num_layers = 2;
  const ModelDimensions without = model;
  const std::vector<SequenceWork> rows = {{.rows = 2, .context = 10, .logit_rows = 2}};
  const auto attention = [&] { return work_of(model, rows).at("attention"); };
  const auto full = attention();
  model.sliding_window_tokens = 4;
  const auto windowed = attention();
  model.full_attention_layers = 1;  // of two
  EXPECT_DOUBLE_EQ(attention().first, (full.first + windowed.first) / 2);
  EXPECT_DOUBLE_EQ(attention().second, (full.second + windowed.second) / 2);
  EXPECT_EQ(measured_form(model), without);
}

TEST(IterationWorkTest, ProjectionsCountWithTheirNeighbours) {
  ModelDimensions model = opt;
  model.embed_size = 8;
  const Work work = work_of(model, {{.rows = 5}});
  EXPECT_EQ(work.at("embedding"), std::pair(2.0 * 8 * 16, 2.0 * 5 * 8 * 16));
  EXPECT_EQ(work.at("lm_head"), std::pair(2.0 * (800 + 128), 2.0 * (800 + 128)));
}

TEST(IterationWorkTest, NarrowWeightsLeaveTheTablesAt16Bits) {
  ModelDimensions narrow = opt;
  narrow.embed_size = 8;
  narrow.weight_bits = 4.5;
  const Work work = work_of(narrow, {{.rows = 5}});
  EXPECT_EQ(work.at("embedding").first, 2.0 * 8 * 16);
  EXPECT_EQ(work.at("lm_head").first, 2.0 * (800 + 128));
  ModelDimensions wide = narrow;
  wide.weight_bits = 16;
  EXPECT_DOUBLE_EQ(work.at("fc1").first, 4.5 / 16 * work_of(wide, {{.rows = 5}}).at("fc1").first);
}

TEST(IterationWorkTest, TheHeadHasAWidthOfItsOwn) {
  ModelDimensions narrow = opt;
  narrow.head_bits = 4.5;
  const Work work = work_of(narrow, {{.rows = 5}});
  EXPECT_DOUBLE_EQ(work.at("lm_head").first, 16 * 100 * 4.5 / 8);
  EXPECT_EQ(work.at("lm_head").second, work_of(opt, {{.rows = 5}}).at("lm_head").second);
  EXPECT_EQ(work.at("fc1"), work_of(opt, {{.rows = 5}}).at("fc1"));
}

TEST(TimeLimitTest, EachStageWaitsForWhatIsSlower) {
  const std::vector<StageWork> stages = {{"qkv", 100, 10}, {"fc1", 10, 400}};
  const TimeLimit limit =
      time_limit(stages, {.read_bandwidth_bytes_per_s = 10, .gemm_flop_per_s = 20});
  EXPECT_DOUBLE_EQ(limit.bandwidth_s, 10);  // 100 / 10 > 10 / 20
  EXPECT_DOUBLE_EQ(limit.compute_s, 20);    // 400 / 20 > 10 / 10
  EXPECT_DOUBLE_EQ(limit.total_s(), 30);
  EXPECT_EQ(limit.bound(), Bound::compute);
}

}  // namespace
}  // namespace sluice
