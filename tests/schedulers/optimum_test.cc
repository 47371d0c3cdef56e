// How far shipped policies are from the best placements there are, by the timeline's own estimate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

using test::Planned;

/// OPT-30B with a few layers.
ModelDimensions few_layers(std::int64_t count) {
  ModelDimensions model = test::dimensions_of("opt-30b");
  model.num_layers = count;
  return model;
}

struct PhaseCase {
  BatchShape shape;
  Start start;
  Pipeline pipeline;
};

double seconds(const Planned& planned, const MemoryPlan& memory, const PhaseCase& phase,
               const std::vector<Placement>& placements) {
  return estimate_iteration(
             planned.costs, memory,
             cut_into_mini_batches(phase.shape, phase.pipeline.mini_batches, placements),
             phase.pipeline.prefetch, phase.start)
      .seconds;
}

/// The least of all placements, each layer with one of its own or all with the same.
double optimum(const Planned& planned, const MemoryPlan& memory, const PhaseCase& phase,
               bool by_layer) {
  const std::size_t num_layers = memory.layers.size();
  const std::size_t free_layers = by_layer ? num_layers : 1;
  double best = std::numeric_limits<double>::infinity();
  std::vector<Placement> placements(num_layers, Placement(Device::cpu));
  for (unsigned long bits = 0; bits < 1UL << 6 * free_layers; ++bits) {
    for (std::size_t i = 0; i < num_layers; ++i)
      placements[i] = Placement::from_bits(bits >> (by_layer ? 6 * i : 0) & 63U);
    best = std::min(best, seconds(planned, memory, phase, placements));
  }
  return best;
}

/// The policy's time over the best for its own memory plan, for both phases.
void compare(const std::string& policy, const std::map<std::string, std::string>& options,
             const std::string& machine, std::int64_t num_layers, const Workload& workload,
             double most) {
  Planned planned(policy, options, machine, few_layers(num_layers));
  const MemoryPlan memory = planned.memory(workload);
  const std::int64_t context = workload.input_tokens + (workload.output_tokens + 1) / 2;
  const PhaseCase phases[2] = {{BatchShape::prefill(workload.batch, workload.input_tokens),
                                Start::cold, planned.policy.policy().pipeline(Phase::prefill)},
                               {BatchShape::decode(workload.batch, context), Start::steady,
                                planned.policy.policy().pipeline(Phase::decode)}};
  for (const PhaseCase& phase : phases) {
    std::vector<Placement> own;
    for (std::size_t i = 0; i < memory.layers.size(); ++i)
      own.push_back(planned.policy.policy().place(static_cast<std::int64_t>(i), phase.shape,
                                                  memory.layers[i]));
    const double found = seconds(planned, memory, phase, own);
    const double same = optimum(planned, memory, phase, false);
    const double by_layer = optimum(planned, memory, phase, true);
    const std::string name = std::string(to_string(phase.shape.phase));
    std::printf(
        "%s, %s, %lld layers, batch %lld, %s: %.3f of the best placement, %.3f of the best for "
        "each layer\n",
        machine.c_str(), policy.c_str(), static_cast<long long>(num_layers),
        static_cast<long long>(workload.batch), name.c_str(), found / same, found / by_layer);
    testing::Test::RecordProperty(policy + "_" + name + "_over_optimum",
                                  std::to_string(found / by_layer));
    EXPECT_GE(found, by_layer * (1 - 1e-9));
    EXPECT_LE(by_layer, same * (1 + 1e-9));
    EXPECT_LE(found, most * by_layer) << policy << ' ' << machine << ' ' << name;
  }
}

class OptimumTest : public testing::TestWithParam<const char*> {};

/// LIA minimises a layer's sum S (equation 2), the timeline's time T has transfers beside
/// computation. T is never more than S, nor less than each of to-GPU transfers, to-CPU transfers
/// and the chain of computation, which make up S: T(LIA) <= S(LIA) <= S(best) <= 3 T(best). What is
/// measured is far less.
TEST_P(OptimumTest, LiaIsWithinItsBound) {
  for (const std::int64_t batch : {1, 64, 900, 1500}) {
    const Workload workload = {.batch = batch, .input_tokens = 256, .output_tokens = 32};
    compare("lia", {{"opt1", "off"}, {"cxl", "off"}}, GetParam(), 2, workload, 3);
  }
}

TEST_P(OptimumTest, NoPolicyBeatsIt) {
  const double any = std::numeric_limits<double>::infinity();
  for (const std::int64_t batch : {1, 64}) {
    const Workload workload = {.batch = batch, .input_tokens = 256, .output_tokens = 32};
    compare("flexgen", {{"gpu_percent", "0"}}, GetParam(), 2, workload, any);
    compare("helm", {}, GetParam(), 2, workload, any);
    compare("all-cpu", {}, GetParam(), 2, workload, any);
    compare("cpu-only", {}, GetParam(), 2, workload, any);
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, OptimumTest, testing::Values("spr-a100", "spr-h100", "gnr-a100"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(OptimumOfThreeLayersTest, LiaIsWithinItsBound) {
  compare("lia", {{"opt1", "off"}, {"cxl", "off"}}, "spr-a100", 3,
          {.batch = 64, .input_tokens = 256, .output_tokens = 32}, 3);
}

}  // namespace
}  // namespace sluice
