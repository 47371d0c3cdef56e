#include "perfmodels/accelerated_model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "perfmodels/measured_model.h"
#include "tests/perfmodels/calibrations.h"
#include "tests/perfmodels/toy_costs.h"

namespace sluice {
namespace {

constexpr std::uint64_t hbm_bytes = 1000;
const BatchShape decode = BatchShape::decode(4, 128);

std::unique_ptr<CostModel> cpu() {
  return std::make_unique<MeasuredModel>(round_calibration(smooth_attention_s), round_model());
}
/// Three times as slow as the CPU.
std::unique_ptr<CostModel> accelerator() {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  for (CalibrationPoint& point : calibration.points) {
    for (double& seconds : point.samples.front().seconds) seconds *= 3;
  }
  return std::make_unique<MeasuredModel>(calibration, round_model());
}

TEST(AcceleratedModelTest, EachDeviceHasItsOwnTimes) {
  const AcceleratedModel costs({cpu(), accelerator(), hbm_bytes, std::nullopt});
  EXPECT_TRUE(costs.has(Device::cpu) && costs.has(Device::gpu));
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc1, decode), 4e-3, 1e-12);
  EXPECT_NEAR(costs.compute_s(Device::gpu, Sublayer::fc1, decode), 12e-3, 1e-12);
  EXPECT_NEAR(costs.lm_head_s(Device::cpu, 4), 8e-3, 1e-12);
  EXPECT_NEAR(costs.lm_head_s(Device::gpu, 4), 24e-3, 1e-12);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::cpu, 1), 2.5e-6);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::gpu, 1), 200e-6);
  EXPECT_DOUBLE_EQ(costs.interference(Phase::decode).kernels_on(Device::cpu), 2);
  EXPECT_DOUBLE_EQ(costs.two_way_slowdown(), 1.5);
  EXPECT_EQ(costs.capacity_bytes(Tier::hbm), hbm_bytes);
  EXPECT_EQ(costs.capacity_bytes(Tier::ddr), std::uint64_t{1} << 34);
}

TEST(AcceleratedModelTest, WithoutAMeasurementItIsAsFastAsTheCpu) {
  const LinkRate link = {.bytes_per_s = 2e9, .latency_s = 50e-6};
  const AcceleratedModel costs({cpu(), nullptr, hbm_bytes, link});
  EXPECT_DOUBLE_EQ(costs.compute_s(Device::gpu, Sublayer::fc1, decode),
                   costs.compute_s(Device::cpu, Sublayer::fc1, decode));
  EXPECT_DOUBLE_EQ(costs.lm_head_s(Device::gpu, 4), costs.lm_head_s(Device::cpu, 4));
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::gpu, 6), 2.5e-6);
  EXPECT_DOUBLE_EQ(costs.interference(Phase::decode).kernels_on(Device::cpu), 1);
  EXPECT_DOUBLE_EQ(costs.two_way_slowdown(), 1);
  EXPECT_THROW(AcceleratedModel({cpu(), nullptr, hbm_bytes, std::nullopt}), Error);
}

TEST(AcceleratedModelTest, OnSharedCoresKernelsOfBothTakeTwiceAsLong) {
  AcceleratedModel::Parts parts = {cpu(), accelerator(), hbm_bytes, std::nullopt};
  EXPECT_EQ(AcceleratedModel(parts).interference(Phase::decode).together, 1);
  parts.shares_cores = true;
  const Interference shared = AcceleratedModel(parts).interference(Phase::decode);
  EXPECT_EQ(shared.together, 2);
  EXPECT_EQ(shared.kernels_on(Device::cpu), 2);  // as measured
}

TEST(AcceleratedModelTest, ALinkThatIsSaidGoesBeforeTheMeasuredOne) {
  const AcceleratedModel measured({cpu(), accelerator(), hbm_bytes, std::nullopt});
  EXPECT_NEAR(measured.transfer_s(Tier::ddr, Tier::hbm, 1e6), 1e-3, 1e-12);
  EXPECT_NEAR(measured.transfer_s(Tier::hbm, Tier::ddr, 1e6), 2e-3, 1e-12);
  EXPECT_EQ(measured.transfer_s(Tier::hbm, Tier::hbm, 1e6), 0);
  EXPECT_EQ(measured.transfer_s(Tier::ddr, Tier::hbm, 0), 0);
  EXPECT_THROW(static_cast<void>(measured.transfer_s(Tier::cxl, Tier::ddr, 1)), Error);
  const LinkRate link = {.bytes_per_s = 1e9, .latency_s = 1e-3};
  const AcceleratedModel said({cpu(), accelerator(), hbm_bytes, link});
  EXPECT_NEAR(said.transfer_s(Tier::ddr, Tier::hbm, 1e6), 2e-3, 1e-12);
  EXPECT_NEAR(said.transfer_s(Tier::hbm, Tier::ddr, 1e6), 2e-3, 1e-12);
}

/// The toy's CXL memory has 8 bytes a second.
TEST(AcceleratedModelTest, BetweenCxlMemoryAndHbmTheSlowerOfTheTwoCounts) {
  const auto costs = [](const LinkRate& link) {
    return AcceleratedModel({std::make_unique<test::ToyCosts>(), nullptr, hbm_bytes, link});
  };
  const AcceleratedModel fast_link = costs({.bytes_per_s = 16, .latency_s = 1});
  EXPECT_DOUBLE_EQ(fast_link.transfer_s(Tier::cxl, Tier::hbm, 80), 10);
  EXPECT_DOUBLE_EQ(fast_link.transfer_s(Tier::hbm, Tier::cxl, 80), 10);
  EXPECT_DOUBLE_EQ(fast_link.transfer_s(Tier::ddr, Tier::hbm, 80), 6);
  const AcceleratedModel slow_link = costs({.bytes_per_s = 4, .latency_s = 1});
  EXPECT_DOUBLE_EQ(slow_link.transfer_s(Tier::cxl, Tier::hbm, 80), 21);
}

}  // namespace
}  // namespace sluice
