#include "perfmodels/calibration_transfer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "perfmodels/measured_model.h"
#include "tests/perfmodels/calibrations.h"

namespace sluice {
namespace {

TEST(SizeLawTest, FindsTheLineThatPointsLieOn) {
  const std::vector<SizeLaw::Point> points = {
      {1e6, 5e-6 + 20e-6}, {4e6, 5e-6 + 80e-6}, {16e6, 5e-6 + 320e-6}};
  const SizeLaw law = SizeLaw::fit(points);
  EXPECT_NEAR(law.fixed, 5e-6, 1e-12);
  EXPECT_NEAR(law.per_element, 20e-12, 1e-18);
  EXPECT_NEAR(law.at(2e6), 45e-6, 1e-12);
}

TEST(SizeLawTest, NeitherPartIsNegative) {
  // Large weights at a lower rate than small ones: the line would begin below 0. Relative errors
  // weigh the same: of n t = 1 and n t = 2, sum(n / t) / sum((n / t)^2) = (1 + 1/2) / (1 + 1/4).
  const std::vector<SizeLaw::Point> slower = {{1, 1}, {10, 20}};
  EXPECT_DOUBLE_EQ(SizeLaw::fit(slower).fixed, 0);
  EXPECT_DOUBLE_EQ(SizeLaw::fit(slower).per_element, 1.2);
  // Less time for more: sum(1 / t) / sum(1 / t^2) = (1/2 + 1) / (1/4 + 1).
  const std::vector<SizeLaw::Point> falling = {{1, 2}, {2, 1}};
  EXPECT_DOUBLE_EQ(SizeLaw::fit(falling).fixed, 1.2);
  EXPECT_DOUBLE_EQ(SizeLaw::fit(falling).per_element, 0);
  // One size only: a rate.
  const std::vector<SizeLaw::Point> same = {{4, 2}, {4, 2}};
  EXPECT_DOUBLE_EQ(SizeLaw::fit(same).at(8), 4);
}

/// round_model() with wider heads, and more for queries: K and V are twice as large, attention
/// computes four times as much.
ModelDimensions wider_model() {
  ModelDimensions model = round_model();
  model.num_heads = 8;
  model.head_dim = 32;
  return model;
}

double elements(const ModelDimensions& model, Sublayer sublayer) {
  return sublayer_load(model, sublayer, BatchShape::decode(1, 1)).flops / 2;
}

/// Every GEMM takes fixed_s and per_element_s for each element of its weight, at any number of
/// rows.
Calibration calibration_by_size(double fixed_s, double per_element_s) {
  Calibration calibration = round_calibration(smooth_attention_s);
  for (CalibrationPoint& point : calibration.points) {
    for (CalibrationSample& sample : point.samples) {
      for (const Sublayer sublayer :
           {Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2})
        sample.seconds[timed_index(sublayer)] =
            fixed_s + per_element_s * elements(calibration.model, sublayer);
    }
  }
  return calibration;
}

TEST(TransferredTest, GemmsKeepTheirRateAndTheirFixedPart) {
  const Calibration measured = calibration_by_size(10e-3, 1e-6);
  ModelDimensions other = wider_model();
  other.vocab_size = 4000;
  const MeasuredModel costs(transferred(measured, other), other);
  // 64 x (256 + 2 x 64), 256 x 64, 64 x 128 x 2, 128 x 64 elements, 1 us each, and 10 ms.
  const BatchShape shape = BatchShape::decode(4, 128);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::qkv, shape), 34.576e-3, 1e-9);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::out_proj, shape), 26.384e-3, 1e-9);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc1, shape), 26.384e-3, 1e-9);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc2, shape), 18.192e-3, 1e-9);
  // Of the LM head, 2 ms a row, only the growth is by that law: 64 x 4000 elements for 64 x 1000.
  EXPECT_NEAR(costs.lm_head_s(Device::cpu, 4), 8e-3 * 266 / 74, 1e-9);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::cpu, 1), 2.5e-6);
}

TEST(TransferredTest, ASublayerOffTheLawStaysAsFarOff) {
  Calibration measured = calibration_by_size(10e-3, 1e-6);
  const ModelDimensions other = wider_model();
  for (CalibrationPoint& point : measured.points) {
    if (point.batch.shape.total_rows() != 16) continue;
    for (CalibrationSample& sample : point.samples) sample.seconds[timed_index(Sublayer::fc2)] *= 3;
  }
  const MeasuredModel costs(transferred(measured, other), other);
  const MeasuredModel before(measured, round_model());
  const BatchShape shape = BatchShape::decode(16, 128);
  // Both weights have the same size in both models, whatever the law of 16 rows is now.
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc2, shape), 3 * 18.192e-3, 1e-9);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc1, shape), 26.384e-3, 1e-9);
  EXPECT_NEAR(before.compute_s(Device::cpu, Sublayer::fc2, shape), 3 * 18.192e-3, 1e-9);
}

/// Attention in which the rest takes as long as reading at round_rates: 128 bytes of KV a token.
double blended_attention_s(const BatchShape& shape) {
  const double tokens = static_cast<double>(shape.batch * shape.context);
  return 128 * tokens / 1e9 * std::pow(2, 1 / 2.5);
}

TEST(TransferredTest, AttentionReadsMoreAndComputesMore) {
  const Calibration measured = round_calibration(blended_attention_s);
  const ModelDimensions other = wider_model();
  const MeasuredModel costs(transferred(measured, other), other);
  const double part_s = 128 * 4 * 512 / 1e9;
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::attention, BatchShape::decode(4, 512)),
              std::pow(std::pow(2 * part_s, 2.5) + std::pow(4 * part_s, 2.5), 1 / 2.5), 1e-12);
}

TEST(TransferredTest, AttentionThatOnlyReadsGoesWithBytes) {
  const Calibration measured = round_calibration([](const BatchShape& shape) {
    return 100 * static_cast<double>(shape.batch * shape.context) / 1e9;  // faster than its load
  });
  const ModelDimensions other = wider_model();
  const MeasuredModel costs(transferred(measured, other), other);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::attention, BatchShape::decode(4, 512)),
              2 * 100 * 4 * 512 / 1e9, 1e-12);
}

TEST(TransferredTest, StoringKvGoesWithBytes) {
  const Calibration measured = round_calibration(smooth_attention_s);
  const ModelDimensions other = wider_model();  // heads twice as wide
  const MeasuredModel costs(transferred(measured, other), other);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::kv_store, BatchShape::prefill(1, 64)),
              2 * 64e-6, 1e-12);
}

TEST(TransferredTest, ToTheSameLayersNothingChanges) {
  const Calibration measured = round_calibration(smooth_attention_s);
  const Calibration same = transferred(measured, measured.model);
  ASSERT_EQ(same.points.size(), measured.points.size());
  for (std::size_t i = 0; i < same.points.size(); ++i) {
    for (std::size_t s = 0; s < timed_sublayers.size(); ++s)
      EXPECT_NEAR(same.points[i].samples[0].seconds[s], measured.points[i].samples[0].seconds[s],
                  1e-15);
  }
}

TEST(TransferredTest, RefusesOtherWidthsAndExperts) {
  const Calibration measured = round_calibration(smooth_attention_s);
  ModelDimensions other = round_model();
  other.weight_bits = 4.5;
  EXPECT_FALSE(transferable(measured.model, other));
  EXPECT_THROW(transferred(measured, other), Error);
  other = round_model();
  other.num_experts = 8;
  EXPECT_THROW(transferred(measured, other), Error);
  other = round_model();
  other.kv_element_bytes = 4;
  EXPECT_THROW(transferred(measured, other), Error);
}

TEST(LayerDistanceTest, SumsTheRatios) {
  EXPECT_DOUBLE_EQ(layer_distance(round_model(), round_model()), 0);
  // 1: 3 times, 4: 4 times, 5 and 6: the same; KV twice, 4 query heads a KV head instead of 2.
  EXPECT_NEAR(layer_distance(round_model(), wider_model()), std::log(3 * 4 * 2 * 2), 1e-12);
  EXPECT_NEAR(layer_distance(wider_model(), round_model()), std::log(3 * 4 * 2 * 2), 1e-12);
}

}  // namespace
}  // namespace sluice
