// What a profile says of a CPU's cores, and what CPU plans make of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "base/error.h"
#include "perfmodels/cpu_plan_cost.h"
#include "perfmodels/cpu_plan_search.h"
#include "tests/perfmodels/machine.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;

MachineProfile profile_with(const char* patch) {
  return parse_profile(machine_with_cores().patch(json::parse(patch)).dump(), "m.json");
}

std::string message_for(const std::string& patch) {
  try {
    static_cast<void>(profile_with(patch.c_str()));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CoresProfileTest, AreReadWithTheirSources) {
  const MachineProfile profile = profile_with("[]");
  ASSERT_TRUE(profile.cpu_cores);
  const CoresProfile& cores = *profile.cpu_cores;
  EXPECT_EQ(cores.topology.value.cores(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(cores.topology.value.is_this_machine());
  EXPECT_EQ(cores.topology.source, "test");
  EXPECT_DOUBLE_EQ(cores.node_bandwidth_gb_per_s.value.at(4), 100);
  EXPECT_EQ(cores.remote_bandwidth_gb_per_s.value, 20);
  EXPECT_DOUBLE_EQ(cores.round_us.value.at(4), 4);
  ASSERT_EQ(cores.contention.size(), 1U);
  EXPECT_EQ(cores.contention[0].cores, 2);
  EXPECT_DOUBLE_EQ(cores.contention[0].bandwidth_gb_per_s.value.at(2), 60);
}

TEST(CoresProfileTest, MayBeMissing) {
  const MachineProfile profile = parse_profile(round_machine().dump(), "m.json");
  EXPECT_FALSE(profile.cpu_cores);
  try {
    core_rates(profile);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the profile round does not describe its CPU's cores; add cpu.topology, "
                 "cpu.node_bandwidth_gb_per_s, cpu.remote_bandwidth_gb_per_s and cpu.round_us");
  }
}

TEST(CoresProfileTest, RatesAreBytesAndSeconds) {
  const CoreRates rates = core_rates(profile_with("[]"), {}, BatchShape::prefill(1, 512));
  EXPECT_DOUBLE_EQ(rates.node_bandwidth.at(4), 100e9);
  EXPECT_DOUBLE_EQ(rates.remote_bandwidth, 20e9);
  EXPECT_DOUBLE_EQ(rates.round_s.at(8), 8e-6);
  EXPECT_DOUBLE_EQ(rates.core_flop_per_s, 10e12 / 8);
  ASSERT_EQ(rates.contention.size(), 1U);
  EXPECT_DOUBLE_EQ(rates.contention[0].bandwidth.at(1), 40e9);
}

TEST(CoresProfileTest, TheRateOfGemmsGoesByTheRows) {
  const MachineProfile profile = profile_with(R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
      "value": {"over": "rows", "points": [[1, 0.8], [8, 8]], "source": "test"}}])");
  EXPECT_DOUBLE_EQ(core_rates(profile).core_flop_per_s, 0.1e12);
  EXPECT_DOUBLE_EQ(core_rates(profile, {}, BatchShape::decode(8, 100)).core_flop_per_s, 1e12);
}

// By hand: 10 GB. Static: 5 GB at 100 GB/s for each node, 50 ms. Interleaved: half near, at
// 100 / 4 GB/s a core, half far, at 20 / 4: a core reads 1 / (0.5 / 25 + 0.5 / 5) GB/s, all eight
// 66.7 GB/s, 150 ms. A hundred rounds of 8 us add 0.8 ms.
TEST(CoresProfileTest, TimesAreThoseOnPaper) {
  const MachineProfile profile = profile_with(R"([{"op": "remove", "path": "/cpu/contention"}])");
  const Topology& topology = profile.cpu_cores->topology.value;
  const CpuPlanCost cost(topology, core_rates(profile),
                         {.products = {{.bytes = 10e9}}, .rounds = 100});
  EXPECT_NEAR(cost(static_plan(topology.cores(), topology).decode), 0.0508, 1e-9);
  EXPECT_NEAR(cost(interleaved_plan(topology.cores()).decode), 0.1508, 1e-9);
  // Arithmetic: 20 TFLOP at 10 TFLOP/s. This profile adds reading to it: 50 ms.
  const CpuPlanCost prefill(topology, core_rates(profile, {}, BatchShape::prefill(1, 512)),
                            {.products = {{.bytes = 10e9, .flops = 20e12}}});
  EXPECT_NEAR(prefill(static_plan(topology.cores(), topology).prefill), 2.05, 1e-9);
}

// By hand, 2 layers of hidden 4, q 4, kv 2, ffn 8, 10 words, 2 bytes an element, one new token
// behind three. Bytes: a layer has 32 + 16 + 64 + 32 weights, the head 40; K and V of 4 tokens in
// each layer are 16 elements. FLOP: twice the weights, and 4 q x 4 keys in each layer.
TEST(PlanWorkTest, IsThatOnPaper) {
  const ModelDimensions model = {.num_layers = 2,
                                 .hidden_size = 4,
                                 .embed_size = 4,
                                 .num_heads = 2,
                                 .num_kv_heads = 1,
                                 .head_dim = 2,
                                 .ffn_size = 8,
                                 .vocab_size = 10};
  const PlanWork work = plan_work(model, {{.rows = 1, .context = 3}});
  EXPECT_DOUBLE_EQ(work.bytes(), 2 * (2 * 144 + 40 + 2 * 16));
  EXPECT_DOUBLE_EQ(work.flops(), 2 * (2 * 144 + 40) + 2 * 64);
  EXPECT_EQ(work.rounds, 13);
  const PlanWork two = plan_work(model, {{.rows = 1, .context = 3}, {.rows = 1, .context = 3}});
  EXPECT_DOUBLE_EQ(two.bytes() - work.bytes(), 2 * 2 * 16) << "weights are read once";
  EXPECT_DOUBLE_EQ(two.flops(), 2 * work.flops());
}

// Llama 3.2 1B by hand: 16 layers of 2048 x (2048 + 2 x 512), 2048 x 2048 and 3 x 2048 x 8192
// elements and a head of 2048 x 128256, two bytes each; K and V of one token have 2 x 512 a layer.
TEST(PlanWorkTest, OfAStepOfDecodingIsThatByHand) {
  const ModelDimensions model = {.num_layers = 16,
                                 .hidden_size = 2048,
                                 .embed_size = 2048,
                                 .num_heads = 32,
                                 .num_kv_heads = 8,
                                 .head_dim = 64,
                                 .ffn_size = 8192,
                                 .vocab_size = 128256,
                                 .gated_ffn = true};
  const double layer = 2048.0 * (2048 + 2 * 512) + 2048.0 * 2048 + 3 * 2048.0 * 8192;
  const double weights = 16 * layer + 2048.0 * 128256;
  const PlanWork work = plan_work(model, {{.rows = 1, .context = 99, .logit_rows = 1}});
  EXPECT_DOUBLE_EQ(work.bytes(), 2 * (weights + 16 * 100 * 2.0 * 512));
  EXPECT_DOUBLE_EQ(work.flops(), 2 * weights + 16 * 4.0 * 2048 * 100);
  EXPECT_EQ(work.rounds, 97);
}

TEST(CoresProfileTest, FieldsGoTogether) {
  for (const char* key :
       {"topology", "node_bandwidth_gb_per_s", "remote_bandwidth_gb_per_s", "round_us"}) {
    EXPECT_EQ(message_for(fmt::format(R"([{{"op": "remove", "path": "/cpu/{}"}}])", key)),
              fmt::format("m.json: cpu: \"{}\" is missing; topology, node_bandwidth_gb_per_s, "
                          "remote_bandwidth_gb_per_s, round_us go together, so give all of them "
                          "or none",
                          key));
  }
}

TEST(CoresProfileTest, BadFieldsAreRefusedInOneLine) {
  const std::map<const char*, const char*> cases = {
      {R"([{"op": "replace", "path": "/cpu/topology", "value": "pack:2 core:4 pu:1"}])",
       R"(m.json: cpu.topology is "pack:2 core:4 pu:1", expected {"value": a text, "source": )"
       R"("where it comes from"})"},
      {R"([{"op": "remove", "path": "/cpu/topology/source"}])",
       "m.json: cpu.topology.source is missing"},
      {R"([{"op": "replace", "path": "/cpu/topology/value", "value": "two\nsockets"}])",
       "m.json: cpu.topology.value is \"two\\nsockets\", expected hwloc's synthetic text of at "
       "most "
       "4096 hardware threads, such as \"pack:2 numa:1 l3:4 core:8 pu:2\""},
      {R"([{"op": "replace", "path": "/cpu/topology/value", "value": 8}])",
       "m.json: cpu.topology.value is 8, expected hwloc's synthetic text of at most 4096 hardware "
       "threads, such as \"pack:2 numa:1 l3:4 core:8 pu:2\""},
      {R"([{"op": "replace", "path": "/cpu/topology/value", "value": "pack:2 core:8 pu:1"}])",
       "m.json: cpu.topology.value: it has 16 cores, and cpu.cores is 8; make them agree"},
      {R"([{"op": "replace", "path": "/cpu/topology/value",
            "value": "pack:100000 core:100000 pu:1"}])",
       "m.json: cpu.topology.value is \"pack:100000 core:100000 pu:1\", expected hwloc's synthetic "
       "text of at most 4096 hardware threads, such as \"pack:2 numa:1 l3:4 core:8 pu:2\""},
      {R"([{"op": "replace", "path": "/cpu/node_bandwidth_gb_per_s/over", "value": "rows"}])",
       "m.json: cpu.node_bandwidth_gb_per_s.over is \"rows\", expected \"cores\""},
      {R"([{"op": "replace", "path": "/cpu/node_bandwidth_gb_per_s/points/1/1", "value": 1e11}])",
       "m.json: cpu.node_bandwidth_gb_per_s.points.1.1 is 100000000000.0, expected 1 to 20000 "
       "GB/s; is it in another unit?"},
      {R"([{"op": "replace", "path": "/cpu/remote_bandwidth_gb_per_s/value", "value": -1}])",
       "m.json: cpu.remote_bandwidth_gb_per_s.value is -1, expected a number above 0"},
      {R"([{"op": "replace", "path": "/cpu/round_us/over", "value": "cores"}])",
       "m.json: cpu.round_us.over is \"cores\", expected \"threads\""},
      {R"([{"op": "replace", "path": "/cpu/round_us/points", "value": [[1, 8e-6]]}])",
       "m.json: cpu.round_us.points.0.1 is 8e-06, expected 0.01 to 10000 us; is it in another "
       "unit?"},
      {R"([{"op": "replace", "path": "/cpu/contention", "value": []}])",
       "m.json: cpu.contention is [], expected a list with at least one element"},
      {R"([{"op": "replace", "path": "/cpu/contention/0/cores", "value": 3}])",
       "m.json: cpu.contention.0.cores is 3, expected 2 or more that divide the 4 cores of NUMA "
       "node 0"},
      {R"([{"op": "replace", "path": "/cpu/contention/0/cores", "value": 1}])",
       "m.json: cpu.contention.0.cores is 1, expected 2 or more that divide the 4 cores of NUMA "
       "node 0"},
      {R"([{"op": "replace", "path": "/cpu/contention/0/cores", "value": 2.5}])",
       "m.json: cpu.contention.0.cores is 2.5, expected a whole number"},
      {R"([{"op": "add", "path": "/cpu/contention/0/level", "value": "l3"}])",
       "m.json: cpu.contention.0.level: unknown key, expected cores, bandwidth_gb_per_s"}};
  for (const auto& [patch, expected] : cases) EXPECT_EQ(message_for(patch), expected) << patch;
}

TEST(CoresProfileTest, NeverNameAFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("machine.xml");
  std::ofstream(path) << R"(<topology version="2.0"><object type="Machine"/></topology>)";
  json patch = {{{"op", "replace"}, {"path", "/cpu/topology/value"}, {"value", path}}};
  const std::string message = message_for(patch.dump());
  EXPECT_NE(message.find("expected hwloc's synthetic text"), std::string::npos) << message;
}

/// Shipped profiles that describe their cores.
std::vector<std::string> profiles_with_cores() {
  std::vector<std::string> names;
  for (const std::string& name : known_profiles()) {
    if (load_profile(name).cpu_cores) names.push_back(name);
  }
  return names;
}

TEST(CoresProfileTest, SandwichsMachinesHaveThem) {
  EXPECT_EQ(profiles_with_cores(),
            (std::vector<std::string>{"epyc-7h12-2", "kunpeng-920-4", "xeon-6151-2", "xeon-6230-2",
                                      "xeon-8272cl-2"}));
}

/// Cores and NUMA nodes of section 8.1's list.
TEST(CoresProfileTest, SandwichsMachinesAreThoseOfThePaper) {
  const std::map<std::string, std::pair<int, int>> machines = {{"epyc-7h12-2", {128, 2}},
                                                               {"kunpeng-920-4", {192, 8}},
                                                               {"xeon-6151-2", {36, 2}},
                                                               {"xeon-6230-2", {40, 2}},
                                                               {"xeon-8272cl-2", {48, 2}}};
  for (const auto& [name, counts] : machines) {
    const MachineProfile profile = load_profile(name);
    const CoresProfile& cores = *profile.cpu_cores;
    EXPECT_EQ(std::ssize(cores.topology.value.cores()), counts.first) << name;
    EXPECT_EQ(cores.topology.value.count(TopologyLevel::numa_node), counts.second) << name;
    EXPECT_NEAR(profile.cpu.memory_bandwidth_gb_per_s.value,
                counts.second * cores.node_bandwidth_gb_per_s.value.at(1000), 0.1)
        << name << ": what all nodes give together";
  }
}

class ShippedCoresTest : public testing::TestWithParam<std::string> {};

// One step of decoding sheared-llama-1.3b in bf16 reads 2.7 GB.
TEST_P(ShippedCoresTest, AreSearchedWithinAMinute) {
  const MachineProfile profile = load_profile(GetParam());
  const Topology& topology = profile.cpu_cores->topology.value;
  const CpuPlanCost cost(topology, core_rates(profile),
                         {.products = {{.bytes = 2.7e9, .flops = 2.7e9}}, .rounds = 145});
  const auto start = std::chrono::steady_clock::now();
  const PlanSearch found = search_plans(topology, cost);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  ASSERT_FALSE(found.best.empty());
  const double best_s = found.best.front().seconds;
  EXPECT_LE(best_s, cost(static_plan(topology.cores(), topology).decode) * (1 + 1e-6));
  EXPECT_LT(best_s, cost(interleaved_plan(topology.cores()).decode));
  EXPECT_GE(best_s, 2.7e9 / (profile.cpu.memory_bandwidth_gb_per_s.value * 1e9))
      << "nothing is read faster than memory gives";
}

INSTANTIATE_TEST_SUITE_P(All, ShippedCoresTest, testing::ValuesIn(profiles_with_cores()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
