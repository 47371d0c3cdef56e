#include "engine/measure/sweep.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/engine.h"

namespace sluice {
namespace {

/// A layer so small that a sweep takes seconds.
ModelConfig small_shape() {
  ModelConfig config = find_shape("llama-3.2-1b");
  config.hidden_size = config.embed_size = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.ffn_size = 128;
  return config;
}

TEST(SweepTest, MeasuresEveryStageAndSize) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the probes read some times the machine's caches, which takes minutes here";
#endif
  const SweepOptions options = {.dtype = DType::f32,
                                .repeat = 1,
                                .max_rows = 2,
                                .max_batch = 4,
                                .max_context = 512,
                                .progress = {}};
  const std::vector<SweepPoint> points = sweep(small_shape(), test::runtime(2), options);
  const std::string text = format_sweep(OutputFormat::json, "small", DType::f32, 2, points);
  std::map<std::string, int> counts;
  for (const nlohmann::json& object : nlohmann::json::parse(text)) {
    ++counts[object["stage"]];
    for (const char* key : {"seconds", "flop_per_s", "bytes_per_s", "limit_share"}) {
      EXPECT_GT(object[key].get<double>(), 0) << object;
    }
    EXPECT_EQ(object["rows"].is_null(), object["operation"] == "gemv") << object;
    EXPECT_EQ(object["context"].is_null(), object["operation"] == "gemm") << object;
  }
  // Rows 1 and 2; batches 1 and 4 by contexts 256 and 512.
  const std::map<std::string, int> expected = {{"qkv", 2}, {"out_proj", 2}, {"fc1", 2},
                                               {"fc2", 2}, {"gqa", 4},      {"mha", 4}};
  EXPECT_EQ(counts, expected);
  const std::vector<LinePlot> plots = sweep_plots("small", DType::f32, points);
  ASSERT_EQ(plots.size(), 2U);
  EXPECT_EQ(plots[0].series.size(), 4U);
  ASSERT_EQ(plots[1].series.size(), 4U);
  EXPECT_EQ(plots[1].series[2].colour, plots[1].series[0].colour);
}

// Attention's rows lie further apart than they are wide where they are a multiple of 4 KiB.
TEST(SweepTest, AttentionStaysWithinItsMemory) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the probes read some times the machine's caches, which takes minutes here";
#endif
  ModelConfig config = small_shape();
  config.num_heads = 32;
  config.head_dim = 64;
  const SweepOptions options = {.dtype = DType::bf16,
                                .repeat = 1,
                                .operations = {SweepPoint::Operation::gemv},
                                .max_rows = 1,
                                .max_batch = 64,
                                .max_context = 256,
                                .progress = {}};
  EXPECT_EQ(sweep(config, test::runtime(2), options).size(), 8U);
}

TEST(SweepTest, MeasuresTheExpertsOfAMixture) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the probes read some times the machine's caches, which takes minutes here";
#endif
  ModelConfig config = small_shape();
  config.num_experts = 8;
  config.experts_per_token = 2;
  const SweepOptions options = {.dtype = DType::f32,
                                .repeat = 1,
                                .max_rows = 8,
                                .max_batch = 1,
                                .max_context = 256,
                                .progress = {}};
  const std::vector<SweepPoint> points = sweep(config, test::runtime(2), options);
  const std::string text = format_sweep(OutputFormat::json, "small", DType::f32, 2, points);
  std::vector<double> touched;
  for (const nlohmann::json& object : nlohmann::json::parse(text)) {
    const bool is_experts = object["operation"] == "experts";
    EXPECT_EQ(object["experts_touched"].is_null(), !is_experts) << object;
    if (!is_experts) continue;
    touched.push_back(object["experts_touched"]);
    // Rows go through two experts each, of three matrices of 64 by 128 in f32.
    const double per_row = 2.0 * 2 * 3 * 64 * 128;
    EXPECT_NEAR(object["flop_per_s"].get<double>() * object["seconds"].get<double>(),
                object["rows"].get<double>() * per_row, 1);
    EXPECT_NEAR(object["bytes_per_s"].get<double>() * object["seconds"].get<double>(),
                touched.back() * 3 * 64 * 128 * 4, 1e-3 * touched.back() * 3 * 64 * 128 * 4);
  }
  ASSERT_EQ(touched.size(), 4U);
  EXPECT_EQ(touched.front(), 2);
  EXPECT_GT(touched.back(), 5);  // 7.2 are expected
  EXPECT_LE(touched.back(), 8);
}

}  // namespace
}  // namespace sluice
