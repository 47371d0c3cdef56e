#include "perfmodels/scaled_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "perfmodels/analytic_model.h"
#include "tests/perfmodels/calibrations.h"
#include "tests/perfmodels/machine.h"

namespace sluice {
namespace {

/// 100 GB/s, 10 TFLOP/s on the CPU, as a roofline.
AnalyticModel roofline_machine() {
  nlohmann::json machine = round_machine();
  machine["cpu"]["combine"] = "max";
  return {parse_profile(machine.dump(), "test"), round_model()};
}

TEST(RooflineTest, LoadsAreWeightsAndVisibleKeys) {
  const ModelDimensions model = round_model();
  const SublayerLoad fc1 = sublayer_load(model, Sublayer::fc1, BatchShape::decode(3, 10));
  EXPECT_DOUBLE_EQ(fc1.bytes, 2 * 64 * 128 * 2);
  EXPECT_DOUBLE_EQ(fc1.flops, 2.0 * 3 * 64 * 128 * 2);
  const SublayerLoad attention =
      sublayer_load(model, Sublayer::attention, BatchShape::prefill(1, 3));
  EXPECT_DOUBLE_EQ(attention.bytes, 3 * 2 * 2 * 16 * 2);
  EXPECT_DOUBLE_EQ(attention.flops, 4.0 * 64 * (1 + 2 + 3));
  EXPECT_DOUBLE_EQ(lm_head_load(model, 2).bytes, 64 * 1000 * 2);
  ModelDimensions narrow = model;
  narrow.weight_bits = 4.5;  // a layer's, not the head's
  EXPECT_DOUBLE_EQ(lm_head_load(narrow, 2).bytes, 64 * 1000 * 2);
}

constexpr MachineRates one_rates = {.read_bandwidth_bytes_per_s = 1, .gemm_flop_per_s = 1};
constexpr MachineRates twice_the_bandwidth = {.read_bandwidth_bytes_per_s = 2,
                                              .gemm_flop_per_s = 1};
constexpr MachineRates twice_the_gemm = {.read_bandwidth_bytes_per_s = 1, .gemm_flop_per_s = 2};

TEST(CarriedOverTest, AGemmKeepsWhatItTakesBeyondItsLoad) {
  const SublayerLoad reads = {.bytes = 10, .flops = 2};
  EXPECT_DOUBLE_EQ(carried_over(12, reads, one_rates, twice_the_bandwidth), 7);
  EXPECT_DOUBLE_EQ(carried_over(12, reads, one_rates, twice_the_gemm), 12);
  EXPECT_DOUBLE_EQ(carried_over(7, reads, twice_the_bandwidth, one_rates), 12);
  EXPECT_DOUBLE_EQ(carried_over(8, reads, one_rates, twice_the_bandwidth), 4);  // beyond the limit
  const SublayerLoad computes = {.bytes = 2, .flops = 10};
  EXPECT_DOUBLE_EQ(carried_over(12, computes, one_rates, twice_the_gemm), 7);
}

TEST(CarriedOverTest, AttentionBlendsReadingAndTheRest) {
  const SublayerLoad attention = {.bytes = 10, .flops = 1, .attends = true};
  const double rest = std::pow(std::pow(12, 2.5) - std::pow(10, 2.5), 0.4);
  EXPECT_NEAR(carried_over(12, attention, one_rates, twice_the_bandwidth),
              std::pow(std::pow(5, 2.5) + std::pow(rest, 2.5), 0.4), 1e-12);
  EXPECT_NEAR(carried_over(12, attention, one_rates, twice_the_gemm),
              std::pow(std::pow(10, 2.5) + std::pow(rest / 2, 2.5), 0.4), 1e-12);
  EXPECT_NEAR(carried_over(12, attention, one_rates, one_rates), 12, 1e-12);
  EXPECT_DOUBLE_EQ(carried_over(8, attention, one_rates, twice_the_bandwidth), 4);
}

TEST(ScaledModelTest, WithoutSpeedUpChangesNothing) {
  const AnalyticModel base = roofline_machine();
  const ScaledModel scaled(base, {});
  for (const Sublayer sublayer : layer_sublayers) {
    for (const Device device : {Device::cpu, Device::gpu}) {
      const BatchShape shape = BatchShape::decode(4, 100);
      EXPECT_NEAR(
          scaled.compute_s(device, sublayer, shape) / base.compute_s(device, sublayer, shape), 1,
          1e-9);
    }
  }
  EXPECT_DOUBLE_EQ(scaled.transfer_s(Tier::ddr, Tier::hbm, 1e6),
                   base.transfer_s(Tier::ddr, Tier::hbm, 1e6));
  EXPECT_EQ(scaled.capacity_bytes(Tier::hbm), base.capacity_bytes(Tier::hbm));
}

TEST(ScaledModelTest, FasterMemoryHelpsWhatWaitsForIt) {
  const AnalyticModel base = roofline_machine();
  const ScaledModel scaled(base, {.ddr = 2});
  const BatchShape one = BatchShape::decode(1, 100);
  const BatchShape many = BatchShape::prefill(1, 2048);
  EXPECT_NEAR(scaled.compute_s(Device::cpu, Sublayer::fc1, one) /
                  base.compute_s(Device::cpu, Sublayer::fc1, one),
              0.5, 1e-9);
  EXPECT_NEAR(scaled.compute_s(Device::cpu, Sublayer::fc1, many) /
                  base.compute_s(Device::cpu, Sublayer::fc1, many),
              1, 1e-9);
  EXPECT_NEAR(scaled.lm_head_s(Device::cpu, 1) / base.lm_head_s(Device::cpu, 1), 0.5, 1e-9);
  EXPECT_DOUBLE_EQ(scaled.compute_s(Device::gpu, Sublayer::fc1, one),
                   base.compute_s(Device::gpu, Sublayer::fc1, one));
}

TEST(ScaledModelTest, FasterArithmeticHelpsWhatComputes) {
  const AnalyticModel base = roofline_machine();
  const ScaledModel scaled(base, {.cpu_gemm = 2});
  const BatchShape one = BatchShape::decode(1, 100);
  const BatchShape many = BatchShape::prefill(1, 2048);
  EXPECT_NEAR(scaled.compute_s(Device::cpu, Sublayer::fc1, one) /
                  base.compute_s(Device::cpu, Sublayer::fc1, one),
              1, 1e-9);
  EXPECT_NEAR(scaled.compute_s(Device::cpu, Sublayer::fc1, many) /
                  base.compute_s(Device::cpu, Sublayer::fc1, many),
              0.5, 1e-9);
}

TEST(ScaledModelTest, AFasterLinkIsTheGpusOnly) {
  const AnalyticModel base = roofline_machine();
  const ScaledModel scaled(base, {.link = 2});
  EXPECT_DOUBLE_EQ(scaled.transfer_s(Tier::ddr, Tier::hbm, 1e6),
                   base.transfer_s(Tier::ddr, Tier::hbm, 1e6) / 2);
  EXPECT_DOUBLE_EQ(scaled.transfer_s(Tier::ddr, Tier::ddr, 1e6), 0);
}

}  // namespace
}  // namespace sluice
