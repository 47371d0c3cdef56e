#include "engine/measure/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "engine/machine/compute.h"

namespace sluice {
namespace {

constexpr CalibrationLimits limits = {
    .num_layers = 9, .rates = {.read_bandwidth_bytes_per_s = 32e9, .gemm_flop_per_s = 0.26e12}};

std::vector<CalibrationBatch> calibrated() {
  return calibration_batches(find_model_config("llama-3.2-1b"), DType::bf16, limits);
}

std::vector<CalibrationBatch> with_rows(std::int64_t rows) {
  std::vector<CalibrationBatch> found = calibrated();
  std::erase_if(found, [&](const auto& batch) { return batch.shape.total_rows() != rows; });
  return found;
}

TEST(CalibrationBatchesTest, BetweenPowersOfTwoAPromptWithoutHeadTellsTheLinearSublayers) {
  for (const std::int64_t rows : {24, 48, 96, 192}) {
    const std::vector<CalibrationBatch> found = with_rows(rows);
    ASSERT_EQ(found.size(), 1U) << rows;
    EXPECT_EQ(found[0].shape.phase, Phase::prefill) << rows;
    EXPECT_EQ(found[0].logit_rows, 0) << rows;
  }
  for (const std::int64_t rows : {32, 64, 128, 256}) EXPECT_GT(with_rows(rows).size(), 3U) << rows;
}

TEST(CalibrationBatchesTest, NoneTakesTooLong) {
  const ModelDimensions model = model_dimensions(find_model_config("llama-3.2-1b"), DType::bf16);
  for (const CalibrationBatch& batch : calibrated())
    EXPECT_LE(foreseen_s(batch, model, limits.num_layers, limits.rates), limits.longest_s);
}

TEST(CalibrationBatchesTest, ChecksAreOfOtherShapes) {
  const std::vector<CalibrationBatch> known = calibrated();
  const std::vector<CalibrationBatch> checks =
      check_batches(find_model_config("llama-3.2-1b"), DType::bf16, limits);
  EXPECT_GT(checks.size(), 40U);
  for (const CalibrationBatch& check : checks)
    EXPECT_EQ(std::find(known.begin(), known.end(), check), known.end()) << describe(check);
}

}  // namespace
}  // namespace sluice
