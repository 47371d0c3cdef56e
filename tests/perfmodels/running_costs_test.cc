#include "perfmodels/running_costs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/perfmodels/machine.h"

namespace sluice {
namespace {

nlohmann::json number(double value) { return {{"value", value}, {"source", "test"}}; }

/// A machine with two GPUs: idle 30 + 50 + 2 x 20 = 120 W, at full load 30 + 150 + 2 x 220 = 620 W.
nlohmann::json machine() {
  nlohmann::json machine = round_machine();
  machine["cpu"]["idle_watts"] = number(50);
  machine["cpu"]["busy_watts"] = number(150);
  machine["gpu"]["count"] = number(2);
  machine["gpu"]["idle_watts"] = number(20);
  machine["gpu"]["busy_watts"] = number(220);
  machine["system"] = {{"other_watts", number(30)},
                       {"price_usd", number(9460.8)},
                       {"lifetime_years", number(3)},
                       {"electricity_usd_per_kwh", number(0.1)}};
  return machine;
}

RunningCosts costs_of(const nlohmann::json& machine) {
  return RunningCosts(parse_profile(machine.dump(), "round.json"));
}

TEST(RunningCostsTest, DevicesDrawMoreWhileTheyWork) {
  const RunningCosts costs = costs_of(machine());
  EXPECT_EQ(costs.problem(), "");
  EXPECT_DOUBLE_EQ(costs.energy_j(10, {}).value(), 120 * 10);
  EXPECT_DOUBLE_EQ(costs.energy_j(10, {.cpu_s = 4, .gpu_s = 5}).value(),
                   120 * 10 + 100 * 4 + 2 * 200 * 5);
}

TEST(RunningCostsTest, AnIdleMachineSaysWhatIsNeitherCpuNorGpu) {
  nlohmann::json by_idle = machine();
  by_idle["system"].erase("other_watts");
  by_idle["system"]["idle_watts"] = number(120);
  const RunningCosts costs = costs_of(by_idle);
  EXPECT_DOUBLE_EQ(costs.energy_j(10, {.cpu_s = 4, .gpu_s = 5}).value(), 3600);
  EXPECT_DOUBLE_EQ(costs.cost_usd(7).value(), costs_of(machine()).cost_usd(7).value());
}

TEST(RunningCostsTest, PriceIsLifetimeAndElectricityAtFullLoad) {
  // Three years are 94,608,000 s: 0.0001 $/s. 0.62 kW at 0.1 $/kWh: 0.062 $/h.
  EXPECT_NEAR(costs_of(machine()).cost_usd(3600).value(), 0.36 + 0.062, 1e-12);
}

TEST(RunningCostsTest, WithoutAGpuTheCpuIsAll) {
  nlohmann::json cpu_alone = machine();
  cpu_alone.erase("gpu");
  for (const char* tier : {"hbm", "cxl", "disk"}) cpu_alone["tiers"].erase(tier);
  cpu_alone.erase("links");
  const RunningCosts costs = costs_of(cpu_alone);
  EXPECT_DOUBLE_EQ(costs.energy_j(10, {.cpu_s = 4}).value(), 80 * 10 + 100 * 4);
  EXPECT_NEAR(costs.cost_usd(3600).value(), 0.36 + 0.018, 1e-12);
}

TEST(RunningCostsTest, WhatIsMissingIsSaid) {
  nlohmann::json no_price = machine();
  no_price["system"].erase("price_usd");
  no_price["system"].erase("lifetime_years");
  EXPECT_EQ(costs_of(no_price).problem(),
            "the profile lacks system.price_usd, system.lifetime_years");
  EXPECT_TRUE(costs_of(no_price).energy_j(1, {}));
  EXPECT_FALSE(costs_of(no_price).cost_usd(1));

  nlohmann::json no_watts = machine();
  no_watts["gpu"].erase("idle_watts");
  no_watts["system"].erase("other_watts");
  EXPECT_EQ(costs_of(no_watts).problem(), "the profile lacks gpu.idle_watts, system.other_watts");
  EXPECT_FALSE(costs_of(no_watts).energy_j(1, {}));
  EXPECT_FALSE(costs_of(no_watts).cost_usd(1));

  EXPECT_NE(RunningCosts().problem(), "");
  EXPECT_FALSE(RunningCosts().energy_j(1, {}));
}

void expect_error(const nlohmann::json& machine, const std::string& message) {
  try {
    costs_of(machine);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(RunningCostsTest, WattsThatCannotBeAreErrors) {
  nlohmann::json wrong = machine();
  wrong["gpu"]["busy_watts"] = number(10);
  expect_error(wrong, "profile round: gpu.busy_watts is 10: expected at least gpu.idle_watts, 20");
  wrong = machine();
  wrong["system"].erase("other_watts");
  wrong["system"]["idle_watts"] = number(80);
  expect_error(
      wrong,
      "profile round: system.idle_watts is 80: expected at least what CPU and GPU draw idle, 90");
}

}  // namespace
}  // namespace sluice
