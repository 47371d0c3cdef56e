// `sluice simulate` from outside: what a simulation must come to can be worked out by hand where
// one part of the machine is slow and all others are fast.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "tests/engine/pj_dump.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;

constexpr double giga = 1e9;

/// A machine of round figures.
struct RoundMachine {
  double cpu_gb_per_s = 100;
  double link_gb_per_s = 10;
  double cxl_link_gb_per_s = 0;  ///< 0: no CXL
  bool cxl_bypasses_pcie = false;
  double disk_gb_per_s = 0;  ///< 0: no disk
  double hbm_gib = 6;
  double ddr_gib = 512;
  bool knows_watts = false;

  std::string write(const TemporaryFolder& folder) const {
    const auto number = [](double value) { return json{{"value", value}, {"source", "a test"}}; };
    const auto device = [&](const char* name, double gb_per_s) {
      return json{{"name", name},
                  {"memory_bandwidth_gb_per_s", number(gb_per_s)},
                  {"gemm_tflop_per_s", number(1000)},
                  {"attention_bandwidth_gb_per_s", number(gb_per_s)},
                  {"attention_tflop_per_s", number(1000)},
                  {"combine", "max"},
                  {"task_overhead_us", number(0)}};
    };
    const auto link = [&](const char* from, const char* to, double gb_per_s) {
      return json{{"from", from},
                  {"to", to},
                  {"pinned", true},
                  {"bandwidth_gb_per_s", number(gb_per_s)},
                  {"latency_us", number(0)}};
    };
    json machine = {{"name", "round"},
                    {"description", "round figures"},
                    {"causal_attention", number(0)},
                    {"cpu", device("cpu", cpu_gb_per_s)},
                    {"gpu", device("gpu", 1000)},
                    {"system", json::object()}};
    machine["cpu"]["cores"] = number(4);
    machine["gpu"]["count"] = number(1);
    machine["tiers"]["hbm"]["capacity_gib"] = number(hbm_gib);
    machine["tiers"]["ddr"]["capacity_gib"] = number(ddr_gib);
    machine["links"] = {link("ddr", "hbm", link_gb_per_s), link("hbm", "ddr", link_gb_per_s)};
    if (cxl_link_gb_per_s > 0) {
      machine["tiers"]["cxl"] = {{"capacity_gib", number(512)},
                                 {"cpu_bandwidth_gb_per_s", number(cxl_link_gb_per_s)}};
      json there = link("cxl", "hbm", cxl_link_gb_per_s);
      json back = link("hbm", "cxl", cxl_link_gb_per_s);
      if (cxl_bypasses_pcie) there["bypasses_pcie"] = back["bypasses_pcie"] = true;
      for (const json& each : {there, back, link("cxl", "ddr", cxl_link_gb_per_s),
                               link("ddr", "cxl", cxl_link_gb_per_s)})
        machine["links"].push_back(each);
    }
    if (disk_gb_per_s > 0) {
      machine["tiers"]["disk"]["capacity_gib"] = number(512);
      machine["links"].push_back(link("disk", "ddr", disk_gb_per_s));
      machine["links"].push_back(link("ddr", "disk", disk_gb_per_s));
    }
    if (knows_watts) {
      machine["cpu"]["idle_watts"] = number(50);
      machine["cpu"]["busy_watts"] = number(150);
      machine["gpu"]["idle_watts"] = number(20);
      machine["gpu"]["busy_watts"] = number(220);
      machine["system"] = {{"other_watts", number(30)},
                           {"price_usd", number(9460.8)},
                           {"lifetime_years", number(3)},
                           {"electricity_usd_per_kwh", number(0)}};
    }
    std::string path = (folder.path() / "round.json").string();
    std::ofstream(path) << machine;
    return path;
  }
};

CliResult simulate(const Arguments& more) { return run_cli(Arguments{"simulate"} + more); }

/// The objects of a run that succeeds.
json simulate_json(Arguments more) {
  more.emplace_back("--json");
  const CliResult result = simulate(std::move(more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

// OPT-30B (Table 1 of LIA): 48 layers of 12 h^2 weights, h = 7168, 2 bytes each.
constexpr double layer_bytes = 2.0 * 12 * 7168 * 7168;
constexpr double head_bytes = 2.0 * 50272 * 7168;

TEST(SimulateCliTest, TheCpuAloneReadsEveryWeightOnceAnIteration) {
  const TemporaryFolder folder;
  const json result =
      simulate_json({"--machine", RoundMachine{}.write(folder), "--model", "opt-30b", "--policy",
                     "cpu-only", "--input-tokens", "16", "--output-tokens", "4"})[0];
  const double iteration_s = (48 * layer_bytes + head_bytes) / (100 * giga);
  EXPECT_NEAR(result["tpot_s"].get<double>(), iteration_s, 0.005 * iteration_s);
  EXPECT_NEAR(result["busy_share"]["cpu"].get<double>(), 1, 0.01);
  EXPECT_EQ(result["bytes_moved"]["link to gpu"], 0);
}

TEST(SimulateCliTest, StreamedWeightsTakeTheLinksTime) {
  const TemporaryFolder folder;
  const json result = simulate_json(
      {"--machine", RoundMachine{}.write(folder), "--model", "opt-30b", "--policy", "lia",
       "--policy-option", "prefill=000000", "--policy-option", "decode=000000", "--policy-option",
       "opt1=off", "--input-tokens", "16", "--output-tokens", "4"})[0];
  const double iteration_s = 48 * layer_bytes / (10 * giga);
  // Weights that the last iteration has left in HBM need not come again: at most all of it.
  const double kept_s = 6.0 * (1 << 30) / (10 * giga);
  EXPECT_LT(result["tpot_s"].get<double>(), 1.005 * iteration_s);
  EXPECT_GT(result["tpot_s"].get<double>(), iteration_s - kept_s);
  EXPECT_GT(result["bytes_moved"]["link to gpu"].get<double>(),
            4 * 48 * layer_bytes - 3 * 6.0 * (1 << 30));
  EXPECT_LT(result["bytes_moved"]["link to gpu"].get<double>(), 1.005 * 4 * 48 * layer_bytes);
  EXPECT_NEAR(result["busy_share"]["link to gpu"].get<double>(), 1, 0.01);
  EXPECT_LE(result["bytes"]["hbm"].get<double>(), 6.0 * (1 << 30));
}

TEST(SimulateCliTest, WeightsThatHbmHasRoomForCrossOnceAsPlanned) {
  // 60 GB of weights, of which all-cpu keeps none in HBM: 80 GB have room for them, 40 GB do not.
  for (const bool room : {true, false}) {
    const Arguments point = {
        "--model",  "opt-30b", "--machine",       room ? "spr-h100" : "spr-a100",
        "--policy", "all-cpu", "--input-tokens",  "16",
        "--batch",  "2",       "--output-tokens", "8"};
    const json planned =
        json::parse(run_cli(Arguments{"plan"} + point + Arguments{"--json"}).out)[0];
    const json result = simulate_json(point)[0];
    EXPECT_EQ(planned["weights_stay"], room);
    EXPECT_NEAR(
        result["bytes_moved"]["link to gpu"].get<double>() / (48 * layer_bytes + head_bytes),
        room ? 1 : 8, room ? 0.01 : 0.1);
    EXPECT_NEAR(result["latency_s"].get<double>() / planned["latency_s"].get<double>(), 1, 0.03);
  }
}

TEST(SimulateCliTest, CxlReachesTheGpuAtItsOwnRate) {
  const TemporaryFolder folder;
  RoundMachine machine;
  machine.cxl_link_gb_per_s = 5;
  machine.ddr_gib = 16;  // too little for the weights
  const json result = simulate_json({"--machine", machine.write(folder), "--model", "opt-30b",
                                     "--policy", "all-cpu", "--parameters-tier", "cxl",
                                     "--input-tokens", "16", "--output-tokens", "3"})[0];
  const double iteration_s = 48 * layer_bytes / (5 * giga);
  EXPECT_NEAR(result["tpot_s"].get<double>(), iteration_s, 0.1 * iteration_s);
  EXPECT_GT(result["bytes"]["cxl"].get<double>(), 47 * layer_bytes);
}

TEST(SimulateCliTest, FasterCxlIsHeldToPcieUnlessItBypassesIt) {
  for (const bool bypasses : {false, true}) {
    const TemporaryFolder folder;
    const RoundMachine machine = {.cxl_link_gb_per_s = 20, .cxl_bypasses_pcie = bypasses};
    const json result = simulate_json({"--machine", machine.write(folder), "--model", "opt-6.7b",
                                       "--policy", "all-cpu", "--parameters-tier", "cxl",
                                       "--input-tokens", "16", "--output-tokens", "3"})[0];
    // 32 layers of 12 h^2 weights, h = 4096, 2 bytes each.
    const double bytes = 32 * 2.0 * 12 * 4096 * 4096;
    const double iteration_s = bytes / ((bypasses ? 20 : 10) * giga);
    EXPECT_NEAR(result["tpot_s"].get<double>(), iteration_s, 0.01 * iteration_s) << bypasses;
    // A plan moves the head each time, from DDR; a simulation finds it in HBM again.
    const double planned_s = 3 * (iteration_s + 2.0 * 50272 * 4096 / (10 * giga));
    EXPECT_NEAR(result["plan_latency_s"].get<double>(), planned_s, 0.01 * planned_s) << bypasses;
  }
}

TEST(SimulateCliTest, WhatComesFromDdrAndFromCxlSharesPcie) {
  const TemporaryFolder folder;
  const RoundMachine machine = {.cxl_link_gb_per_s = 9};
  const json result = simulate_json({"--machine",         machine.write(folder),
                                     "--model",           "opt-30b",
                                     "--policy",          "lia",
                                     "--policy-option",   "prefill=000000",
                                     "--policy-option",   "decode=000000",
                                     "--policy-option",   "opt1=off",
                                     "--parameters-tier", "cxl",
                                     "--kv-tier",         "ddr",
                                     "--batch",           "64",
                                     "--input-tokens",    "512",
                                     "--output-tokens",   "4"})[0];
  // Each iteration: parameters from CXL memory, 9 GB/s at best, and 513 tokens' KV from DDR.
  const double parameters_bytes = 48 * layer_bytes;
  const double kv_bytes = 48.0 * 2 * 7168 * 2 * 64 * 513;
  const double iteration_s = result["tpot_s"].get<double>();
  EXPECT_GT(iteration_s, 0.95 * (parameters_bytes + kv_bytes) / (10 * giga));
  EXPECT_LT(iteration_s, 1.3 * (parameters_bytes + kv_bytes) / (10 * giga));
}

/// 3 iterations, a disk of 2 GB/s.
json beside_disk(const Arguments& policy) {
  const TemporaryFolder folder;
  const RoundMachine machine = {.disk_gb_per_s = 2, .hbm_gib = 8, .ddr_gib = 48};
  return simulate_json(Arguments{"--machine", machine.write(folder), "--model", "opt-30b",
                                 "--input-tokens", "16", "--output-tokens", "3", "--policy"} +
                       policy)[0];
}
Arguments flexgen_from_disk() {
  return {"flexgen",       "--policy-option", "disk_percent=100", "--policy-option",
          "gpu_percent=0", "--policy-option", "attention=gpu"};
}

TEST(SimulateCliTest, FlexGensWeightsFromADiskCrossTheLinkBehindIt) {
  const json result = beside_disk(flexgen_from_disk());
  const double bytes = 3 * 48 * layer_bytes;
  EXPECT_NEAR(result["bytes_moved"]["disk"].get<double>(), bytes, 0.001 * bytes);
  EXPECT_NEAR(result["bytes_moved"]["link to gpu"].get<double>(), bytes, 0.001 * bytes);
  // Of each half layer the last tensor crosses when the disk is done: 1/12 and 4/12 of the layer.
  const double iteration_s = 48 * layer_bytes * (1 / (2 * giga) + 5.0 / 12 / (10 * giga));
  EXPECT_NEAR(result["tpot_s"].get<double>(), iteration_s, 0.005 * iteration_s);
  EXPECT_NEAR(result["plan_latency_s"].get<double>(), 3 * iteration_s, 0.005 * 3 * iteration_s);
  EXPECT_NEAR(result["bytes"]["disk"].get<double>(), 48 * layer_bytes, 0.001 * 48 * layer_bytes);
  // Half a layer while the one before it is used; the embedding.
  EXPECT_LT(result["bytes"]["ddr"].get<double>(), 1.1 * layer_bytes + head_bytes);
}

TEST(SimulateCliTest, WeightsFromADiskComeWhileTheLinkWorks) {
  const json result = beside_disk({SLUICE_HALF_ON_DISK, "--policy-option", "device=gpu"});
  const double bytes = 3 * 24 * layer_bytes;
  EXPECT_NEAR(result["bytes_moved"]["disk"].get<double>(), bytes, 0.001 * bytes);
  EXPECT_NEAR(result["bytes_moved"]["link to gpu"].get<double>(), 2 * bytes, 0.01 * bytes);
  EXPECT_NEAR(result["latency_s"].get<double>(), bytes / (2 * giga), 0.01 * bytes / (2 * giga));
  EXPECT_NEAR(result["busy_share"]["disk"].get<double>(), 1, 0.02);
}

TEST(SimulateCliTest, WeightsFromADiskComeWhileTheCpuComputes) {
  const json result = beside_disk({SLUICE_HALF_ON_DISK});
  const double bytes = 3 * 24 * layer_bytes;
  EXPECT_NEAR(result["bytes_moved"]["disk"].get<double>(), bytes, 0.001 * bytes);
  EXPECT_EQ(result["bytes_moved"]["link to gpu"], 0);
  const double iteration_s = 24 * layer_bytes / (2 * giga);
  EXPECT_NEAR(result["tpot_s"].get<double>(), iteration_s, 0.01 * iteration_s);
  // Two layers on their way.
  EXPECT_LT(result["bytes"]["ddr"].get<double>(), (24 + 2.1) * layer_bytes + 2 * head_bytes);
}

TEST(SimulateCliTest, ParametersTierOverridesThePolicy) {
  const TemporaryFolder folder;
  RoundMachine machine;
  machine.cxl_link_gb_per_s = 5;
  const Arguments point = {
      "--machine",        machine.write(folder), "--model", "opt-30b",         "--policy",
      "cpu-only",         "--input-tokens",      "16",      "--output-tokens", "3",
      "--parameters-tier"};
  const json cxl = simulate_json(point + Arguments{"cxl"})[0];
  // The CPU reads CXL memory at 5 GB/s, DDR (the head) at 100.
  const double iteration_s = 48 * layer_bytes / (5 * giga) + head_bytes / (100 * giga);
  EXPECT_NEAR(cxl["tpot_s"].get<double>(), iteration_s, 0.005 * iteration_s);
  EXPECT_GT(cxl["bytes"]["cxl"].get<double>(), 47.9 * layer_bytes);
  EXPECT_LT(cxl["bytes"]["ddr"].get<double>(), 3 * head_bytes);
  const json ddr = simulate_json(point + Arguments{"ddr"})[0];
  EXPECT_EQ(ddr["bytes"]["cxl"], 0);
  EXPECT_NEAR(ddr["tpot_s"].get<double>(), (48 * layer_bytes + head_bytes) / (100 * giga),
              0.005 * iteration_s);
}

/// LIA section 6, observation 2: attention on the CPU reads all of it for each token.
TEST(SimulateCliTest, KvInCxlMemorySlowsTheCpusAttention) {
  const TemporaryFolder folder;
  RoundMachine machine;
  machine.cxl_link_gb_per_s = 5;
  const Arguments point = {"--machine",       machine.write(folder),
                           "--model",         "opt-30b",
                           "--policy",        "cpu-only",
                           "--batch",         "64",
                           "--input-tokens",  "512",
                           "--output-tokens", "3",
                           "--kv-tier"};
  const json cxl = simulate_json(point + Arguments{"cxl"})[0];
  const json ddr = simulate_json(point + Arguments{"ddr"})[0];
  constexpr double kv_bytes_per_token = 48 * 2 * 7168 * 2;
  EXPECT_NEAR(cxl["bytes"]["cxl"].get<double>(), 64 * 515 * kv_bytes_per_token,
              64 * 32 * kv_bytes_per_token);
  EXPECT_EQ(ddr["bytes"]["cxl"], 0);
  // It is nowhere else, either.
  EXPECT_NEAR(ddr["bytes"]["ddr"].get<double>() - cxl["bytes"]["ddr"].get<double>(),
              cxl["bytes"]["cxl"].get<double>(), 1e-3 * cxl["bytes"]["cxl"].get<double>());
  // Contexts of 513 and 514 tokens.
  const double read_bytes = 64 * 513.5 * kv_bytes_per_token;
  const double slower_s = read_bytes / (5 * giga) - read_bytes / (100 * giga);
  EXPECT_NEAR(cxl["tpot_s"].get<double>() - ddr["tpot_s"].get<double>(), slower_s, 0.01 * slower_s);
}

/// All of it is read for each token but the first, and a page of each sequence is written, after it
/// was read unless it is new.
TEST(SimulateCliTest, KvOnADiskIsReadForEachToken) {
  constexpr double page_bytes = 16.0 * 2 * 7168 * 2;
  for (const char* policy : {"cpu-only", "gpu-only"}) {
    const Arguments point = {"--machine",       "icelake-a100-ssd",
                             "--model",         "opt-6.7b",
                             "--policy",        policy,
                             "--batch",         "4",
                             "--input-tokens",  "500",
                             "--output-tokens", "9",
                             "--kv-tier"};
    const json disk = simulate_json(point + Arguments{"disk"})[0];
    const json ddr = simulate_json(point + Arguments{"ddr"})[0];
    if (std::string(policy) == "gpu-only") {  // it keeps KV in HBM
      EXPECT_EQ(disk["bytes"]["disk"], 0);
      EXPECT_EQ(disk["tpot_s"], ddr["tpot_s"]);
      continue;
    }
    // 32 layers, 4096 wide; 509 tokens are 32 pages.
    constexpr double kv_bytes = 4 * 32 * page_bytes * 4096 / 7168;  // of a layer
    EXPECT_NEAR(disk["bytes"]["disk"].get<double>(), 32 * kv_bytes, 0.02 * 32 * kv_bytes);
    EXPECT_EQ(disk["bytes_moved"]["disk"].get<double>(), 8 * 32 * kv_bytes);
    EXPECT_EQ(ddr["bytes_moved"]["disk"], 0);
    // As the plan foresees.
    EXPECT_NEAR(disk["latency_s"].get<double>(), disk["plan_latency_s"].get<double>(),
                0.05 * disk["latency_s"].get<double>());
  }
}

TEST(SimulateCliTest, AlibisPositionsNeedNoData) {
  const TemporaryFolder folder;
  const json result =
      simulate_json({"--machine", RoundMachine{}.write(folder), "--model", "bloom-176b", "--policy",
                     "cpu-only", "--input-tokens", "16", "--output-tokens", "2"})[0];
  // 70 layers of 12 h^2, h = 14336, and a table of 250,880 rows.
  const double bytes = 2.0 * 14336 * (70 * 12.0 * 14336 + 250880);
  EXPECT_NEAR(result["tpot_s"].get<double>(), bytes / (100 * giga), 0.005 * bytes / (100 * giga));
}

// Mixtral 8x7B: 32 layers, 32 heads and 8 KV heads of 128, 8 experts of 3 x 4096 x 14336.
constexpr double mixtral_attention_bytes = 2.0 * 4096 * (4096 + 2 * 1024 + 4096);
constexpr double mixtral_expert_bytes = 2.0 * 3 * 4096 * 14336;
constexpr double mixtral_head_bytes = 2.0 * 32000 * 4096;

/// Of its 8 experts, of which each row goes through 2.
double mixtral_experts(double rows) { return 8 * (1 - std::pow(0.75, rows)); }

TEST(SimulateCliTest, AMixturesRowsGoThroughSomeOfItsExperts) {
  const TemporaryFolder folder;
  for (const int batch : {1, 4}) {
    const json result =
        simulate_json({"--machine", RoundMachine{}.write(folder), "--model", "mixtral-8x7b",
                       "--policy", "cpu-only", "--batch", std::to_string(batch), "--input-tokens",
                       "16", "--output-tokens", "3"})[0];
    const double layer = mixtral_attention_bytes + mixtral_experts(batch) * mixtral_expert_bytes;
    const double expected_s = (32 * layer + mixtral_head_bytes) / (100 * giga);
    EXPECT_NEAR(result["tpot_s"].get<double>(), expected_s, 0.005 * expected_s) << batch;
    EXPECT_EQ(result["bytes_moved"]["link to gpu"], 0);
  }
}

/// Time per output token of a batch of four on the CPU, in a plan and in a simulation.
std::array<double, 2> mixtral_tpot_s(const TemporaryFolder& folder, const std::string& routing) {
  const Arguments point = {"--machine",       RoundMachine{}.write(folder),
                           "--model",         "mixtral-8x7b",
                           "--policy",        "cpu-only",
                           "--batch",         "4",
                           "--input-tokens",  "16",
                           "--output-tokens", "3",
                           "--routing",       routing};
  const json planned = json::parse(run_cli(Arguments{"plan"} + point + Arguments{"--json"}).out)[0];
  return {planned["tpot_s"].get<double>(), simulate_json(point)[0]["tpot_s"].get<double>()};
}

double mixtral_seconds(double experts) {
  const double layer = mixtral_attention_bytes + experts * mixtral_expert_bytes;
  return (32 * layer + mixtral_head_bytes) / (100 * giga);
}

TEST(SimulateCliTest, AMixturesRowsMayPreferExperts) {
  const TemporaryFolder folder;
  // Expert i is the first of a row's two, or the second behind any other one.
  double all = 0;
  for (int i = 1; i <= 8; ++i) all += 1.0 / i;
  double touched = 0;  // by four rows
  for (int i = 1; i <= 8; ++i) {
    double chance = 1.0 / i / all;
    for (int first = 1; first <= 8; ++first) {
      if (first != i) chance += 1.0 / first / all * (1.0 / i) / (all - 1.0 / first);
    }
    touched += 1 - std::pow(1 - chance, 4);
  }
  ASSERT_LT(touched, mixtral_experts(4) - 0.3);
  for (const double seconds : mixtral_tpot_s(folder, "zipf:1"))
    EXPECT_NEAR(seconds, mixtral_seconds(touched), 0.005 * seconds);
}

TEST(SimulateCliTest, AMixturesRoutingMayBeRecorded) {
  const TemporaryFolder folder;
  // Half of the layers' rows take experts 0 and 1, the others' all alike: 2, and 5.47 of 8.
  json layers = json::array();
  for (int layer = 0; layer < 32; ++layer) {
    layers.push_back(layer % 2 == 0 ? json{40, 40, 0, 0, 0, 0, 0, 0}
                                    : json{10, 10, 10, 10, 10, 10, 10, 10});
  }
  json file = {{"model", "mixtral-8x7b"}, {"rows", 40}, {"layers", layers}};
  file["touched_by_rows"] = json::array();
  folder.write("independent.json", file.dump());
  for (const double seconds : mixtral_tpot_s(folder, folder.file("independent.json")))
    EXPECT_NEAR(seconds, mixtral_seconds((2 + mixtral_experts(4)) / 2), 0.005 * seconds);
  file["touched_by_rows"] = {{1, 2}, {4, 3}};
  folder.write("touched.json", file.dump());
  for (const double seconds : mixtral_tpot_s(folder, folder.file("touched.json")))
    EXPECT_NEAR(seconds, mixtral_seconds(3), 0.005 * seconds);
}

TEST(SimulateCliTest, WrongRoutingsAreSaid) {
  const TemporaryFolder folder;
  expect_failure(
      run_cli({"simulate", "--model", "opt-125m", "--policy", "cpu-only", "--routing", "zipf:1"}),
      2, {"--routing zipf:1", "opt-125m has no experts"});
}

/// Which experts rows go through is known only where the weights are: all of them stream.
TEST(SimulateCliTest, AllExpertsOfAMixtureStream) {
  const TemporaryFolder folder;
  const RoundMachine machine = {.hbm_gib = 24};
  const json result = simulate_json(
      {"--machine", machine.write(folder), "--model", "mixtral-8x7b", "--policy", "lia",
       "--policy-option", "prefill=000000", "--policy-option", "decode=000000", "--policy-option",
       "opt1=off", "--input-tokens", "16", "--output-tokens", "9"})[0];
  const double layers_bytes = 32 * (mixtral_attention_bytes + 8 * mixtral_expert_bytes);
  // What an iteration has left in HBM need not come again in the next.
  const double kept_bytes = 24.0 * (1 << 30);
  EXPECT_LT(result["bytes_moved"]["link to gpu"].get<double>(), 1.005 * 9 * layers_bytes);
  EXPECT_GT(result["bytes_moved"]["link to gpu"].get<double>(), 9 * (layers_bytes - kept_bytes));
  EXPECT_LT(result["tpot_s"].get<double>(), 1.005 * layers_bytes / (10 * giga));
  EXPECT_GT(result["tpot_s"].get<double>(), (layers_bytes - kept_bytes) / (10 * giga));
}

TEST(SimulateCliTest, AMixturesExpertsRunWhole) {
  const TemporaryFolder folder;
  // What the link takes does not count: some of the weights stay in HBM.
  const RoundMachine machine = {.link_gb_per_s = 1000, .hbm_gib = 24};
  const auto point = [&](const std::string& placement) {
    return Arguments{"--machine",       machine.write(folder),
                     "--model",         "mixtral-8x7b",
                     "--policy",        "lia",
                     "--policy-option", "prefill=" + placement,
                     "--policy-option", "decode=" + placement,
                     "--policy-option", "opt1=off",
                     "--input-tokens",  "16",
                     "--output-tokens", "5",
                     "--batch",         "8"};
  };
  for (const std::string placement : {"000011", "111011", "011011"}) {
    const json simulated = simulate_json(point(placement))[0];
    const json planned =
        json::parse(run_cli(Arguments{"plan"} + point(placement) + Arguments{"--json"}).out)[0];
    const double latency_s = planned["latency_s"].get<double>();
    EXPECT_NEAR(simulated["latency_s"].get<double>(), latency_s, 0.05 * latency_s) << placement;
  }
  for (const std::string placement : {"000001", "000010"}) {
    expect_failure(run_cli(Arguments{"simulate"} + point(placement)), 1,
                   {"lia", placement, "p5 and p6 must be the same"});
  }
}

/// Time to first token, per token and latency of a point's plan are within 15 % of its simulation.
void expect_agreement(const Arguments& point, const std::string& where) {
  const json simulated = simulate_json(point)[0];
  const json planned = json::parse(run_cli(Arguments{"plan"} + point + Arguments{"--json"}).out)[0];
  for (const char* figure : {"ttft_s", "tpot_s", "latency_s"}) {
    const double simulated_s = simulated[figure];
    EXPECT_NEAR(planned[figure].get<double>(), simulated_s, 0.15 * simulated_s)
        << where << ": " << figure;
  }
}

/// HBM is full of weights that were given up. New ones take the place of those of their size. If
/// instead the small buffers of each layer's new KV were freed, which waits for all that the GPU
/// does, 950 and 1050 sequences would draw fewer tokens a second than 900, by a seventh.
TEST(SimulateCliTest, MoreSequencesInAFullHbmAreNotSlower) {
  double before = 0;
  for (const char* batch : {"900", "950", "1050", "1100"}) {
    const json result = simulate_json({"--model", "opt-30b", "--machine", "spr-a100", "--policy",
                                       "lia", "--policy-option", "cxl=on", "--input-tokens", "280",
                                       "--output-tokens", "4", "--batch", batch})[0];
    const double tokens_per_s = result["batch"].get<double>() / result["tpot_s"].get<double>();
    EXPECT_GT(tokens_per_s, 0.98 * before) << batch;
    before = tokens_per_s;
  }
}

/// The engine cuts prompts into chains, so that HBM has room for all weights beside them: they
/// cross once, not once more for the first iteration that decodes.
TEST(SimulateCliTest, WeightsStayBesideManyPrompts) {
  expect_agreement({"--machine", "spr-a100-avx512", "--model", "qwen2-7b", "--policy", "all-cpu",
                    "--input-tokens", "1500", "--output-tokens", "32", "--batch", "128"},
                   "qwen2-7b");
}

/// HBM has no room for all experts: they cross in each iteration.
TEST(SimulateCliTest, ExpertsStreamAsPlanned) {
  for (const std::string policy : {"all-cpu", "flexgen", "helm"}) {
    expect_agreement({"--machine", "spr-h100", "--model", "mixtral-8x7b", "--policy", policy,
                      "--input-tokens", "128", "--output-tokens", "16", "--batch", "4"},
                     policy);
  }
}

/// What a plan gets wrong if it does not know how the engine cuts prompts (twice as slow), that a
/// slab moves as a whole (half as slow), what storing new KV takes, that values wait for the
/// tensor that crosses (a fifth faster), and that weights pass layers that load nothing (a third
/// slower).
TEST(SimulateCliTest, PlansOfMixedPlacementsAgree) {
  struct Point {
    const char* model;
    const char* machine;
    const char* batch;
    const char* prefill;
    const char* decode;
  };
  for (const Point& point : {Point{"opt-6.7b", "g5-8xlarge", "512", "011000", "111000"},
                             Point{"opt-6.7b", "g5-16xlarge", "256", "011011", "001111"},
                             Point{"opt-30b", "icelake-a100-dram", "128", "001100", "010001"},
                             Point{"llama-3.2-1b", "cxl-asic", "2", "011000", "011000"},
                             Point{"llama-3.1-70b", "icelake-a100-fsdax", "64", "000000", "011011"},
                             Point{"mixtral-8x7b", "gnr-h100", "8", "100000", "100000"}}) {
    expect_agreement({"--machine", point.machine, "--model", point.model, "--policy", "lia",
                      "--policy-option", std::string("prefill=") + point.prefill, "--policy-option",
                      std::string("decode=") + point.decode, "--input-tokens", "128",
                      "--output-tokens", "8", "--batch", point.batch},
                     std::string(point.model) + " on " + point.machine);
  }
}

TEST(SimulateCliTest, EnergyAndPriceByHand) {
  const TemporaryFolder folder;
  const Arguments point = {"--machine",       RoundMachine{.knows_watts = true}.write(folder),
                           "--model",         "opt-30b",
                           "--policy",        "cpu-only",
                           "--input-tokens",  "16",
                           "--output-tokens", "4"};
  const json result = simulate_json(point)[0];
  // The CPU works all the time, the GPU draws what it draws idle: 30 + 150 + 20 W. A second costs
  // 0.0001 $.
  const double latency_s = 4 * (48 * layer_bytes + head_bytes) / (100 * giga);
  EXPECT_NEAR(result["mean_watts"].get<double>(), 200, 1);
  EXPECT_NEAR(result["energy_j"].get<double>(), 200 * latency_s, 0.01 * 200 * latency_s);
  EXPECT_NEAR(result["joules_per_token"].get<double>(), 50 * latency_s, 0.01 * 50 * latency_s);
  EXPECT_NEAR(result["usd_per_million_tokens"].get<double>(), 1e2 * latency_s / 4,
              0.005 * 1e2 * latency_s / 4);
  const CliResult told = simulate(point);
  EXPECT_NE(told.out.find(" J per token (200 W on average), $"), std::string::npos) << told.out;
}

TEST(SimulateCliTest, TheLargestBatchOfAPlanFitsTheSimulatedMachine) {
  const Arguments point = {
      "--model", "opt-30b",        "--policy", "all-cpu,helm",    "--batch", "max",
      "--json",  "--input-tokens", "16",       "--output-tokens", "2"};
  const json planned = json::parse(run_cli(Arguments{"plan"} + point).out);
  const CliResult simulated = simulate(point);
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  const json results = json::parse(simulated.out);
  ASSERT_EQ(results.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GT(results[i]["batch"], 64);
    EXPECT_EQ(results[i]["batch"], planned[i]["batch"]);
    EXPECT_GT(results[i]["tokens_per_s"], 0);
  }
}

TEST(SimulateCliTest, PlotsCompareWithABaseline) {
  const TemporaryFolder folder;
  const Arguments point = {"--model",        "opt-30b", "--policy",        "cpu-only,lia,gpu-only",
                           "--input-tokens", "16",      "--output-tokens", "2"};
  const auto plot = [&](const char* file, const Arguments& more) {
    return simulate(point + Arguments{"--plot", folder.file(file)} + more);
  };
  const CliResult drawn = plot("plot.svg", {"--batch", "1,4", "--baseline", "cpu-only"});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_NE(drawn.out.find("gpu-only"), std::string::npos);  // the table as without a plot
  const std::string svg = testing::content_of(folder.file("plot.svg"));
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  expect_failure(plot("plot.pdf", {"--baseline", "lia"}), 2, {"plot.pdf", ".svg or .png"});
  expect_failure(plot("plot.svg", {}), 2, {"--plot needs --baseline: one of cpu-only, lia"});
  expect_failure(plot("plot.svg", {"--baseline", "flexgen"}), 2,
                 {"--baseline flexgen: expected one of --policy, which are cpu-only, lia"});
  expect_failure(simulate({"--policy", "lia", "--baseline", "lia", "--plot", folder.file("a.svg")}),
                 2, {"--plot compares policies; name two or more"});
  expect_failure(
      simulate({"--policy", "lia,auto", "--baseline", "lia", "--plot", folder.file("a.svg")}), 2,
      {"--plot compares policies"});
  expect_failure(simulate({"--policy", "lia,flexgen", "--baseline", "lia"}), 2,
                 {"--baseline needs --plot"});
}

TEST(SimulateCliTest, PromptsAreCutAsARunCutsThem) {
  const json result =
      simulate_json({"--machine", "spr-a100", "--model", "llama-3.2-1b", "--policy", "cpu-only",
                     "--input-tokens", "5000", "--output-tokens", "2"})[0];
  EXPECT_EQ(result["prefill"]["iterations"], 3);  // of at most 2048 tokens
}

/// What one iteration of `neo` has in its trace.
struct NeoIteration {
  bool prompts = false;
  int sub_batches = 0;
  std::array<double, 2> cpu_kv_tokens{};  ///< of each sub-batch's attention
  double gpu_kv_tokens = 0;
  std::map<int, double> ffn_start_s;  ///< of sub-batch 0, by layer
};

std::map<int, NeoIteration> neo_iterations(const std::string& trace) {
  std::map<int, NeoIteration> iterations;
  std::ifstream lines(trace + "/trace.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json task = json::parse(line);
    if (!task.contains("first") || task.value("layer", -1) < 0) continue;
    NeoIteration& iteration = iterations[task["iteration"].get<int>()];
    const auto sub_batch = task["sub_batch"].get<std::size_t>();
    const double kv_tokens = task["context"];
    iteration.sub_batches = std::max(iteration.sub_batches, static_cast<int>(sub_batch) + 1);
    if (task["phase"] == "prefill") iteration.prompts = true;
    if (task["first"] == 7 && task["device"] == "cpu")
      iteration.cpu_kv_tokens.at(sub_batch) = kv_tokens;
    if (task["first"] == 7 && task["device"] == "gpu") iteration.gpu_kv_tokens = kv_tokens;
    if (task["first"] == 4 && sub_batch == 0)
      iteration.ffn_start_s[task["layer"].get<int>()] = task["start"].get<double>() * 1e-9;
  }
  return iterations;
}

/// NEO section 3.2: a layer takes max(T_l0, T_ca1) + max(T_l1 + T_ga0, T_ca0). The GPU reads a
/// layer's weights in T_l, whatever the few rows; attention reads KV.
TEST(SimulateCliTest, NeosTwoSubBatchesOverlapAsByItsFormula) {
  const TemporaryFolder folder;
  RoundMachine machine;
  machine.link_gb_per_s = 1000;
  machine.hbm_gib = 60;  // all weights, and KV of some requests
  const std::string trace = folder.file("trace");
  const json result = simulate_json({"--machine", machine.write(folder), "--model", "opt-30b",
                                     "--policy", "neo", "--batch", "20", "--input-tokens", "500",
                                     "--output-tokens", "6", "--trace", trace})[0];
  EXPECT_LE(result["bytes"]["hbm"].get<double>(), 60.0 * (1 << 30));
  constexpr double kv_bytes = 2 * 7168 * 2;  // of a token in a layer
  const double linear_s = layer_bytes / (1000 * giga);
  int compared = 0;
  for (const auto& [number, iteration] : neo_iterations(trace)) {
    if (iteration.prompts || iteration.sub_batches != 2 || iteration.gpu_kv_tokens == 0) continue;
    const double ca0_s = iteration.cpu_kv_tokens[0] * kv_bytes / (100 * giga);
    const double ca1_s = iteration.cpu_kv_tokens[1] * kv_bytes / (100 * giga);
    const double ga0_s = iteration.gpu_kv_tokens * kv_bytes / (1000 * giga);
    const double expected_s = std::max(linear_s, ca1_s) + std::max(linear_s + ga0_s, ca0_s);
    EXPECT_GT(ca0_s + ca1_s, 0.5 * linear_s) << "nothing to hide";
    const double found_s = (iteration.ffn_start_s.at(40) - iteration.ffn_start_s.at(10)) / 30;
    EXPECT_NEAR(found_s, expected_s, 0.03 * expected_s) << "iteration " << number;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

/// As many sequences as fit, by the plan, find room when they run: short ones most of all, whose
/// logits take more than all else that passes.
TEST(SimulateCliTest, WhatIsSaidToFitRuns) {
  for (const auto& [model, machine] : {std::pair("llama-3.1-8b", "spr-h100"),
                                       {"opt-6.7b", "g5-4xlarge"},
                                       {"opt-125m", "g4-4xlarge"}}) {
    for (const char* tokens : {"16", "512"}) {
      for (const json& result : simulate_json({"--machine", machine, "--model", model, "--policy",
                                               "gpu-only,helm,all-cpu", "--batch", "max",
                                               "--input-tokens", tokens, "--output-tokens", "4"})) {
        ASSERT_TRUE(result.contains("tokens_per_s")) << result.value("problem", "") << model;
        EXPECT_TRUE(result["fits"].get<bool>()) << result.value("shortage", "");
        EXPECT_GT(result["batch"].get<int>(), 20);
      }
    }
  }
}

/// Some requests' KV is in HBM, and the others', most, in DDR, where the CPU attends: they run in
/// turns, or in two sub-batches beside prompts.
TEST(SimulateCliTest, NeosPlanCountsAllItsRequests) {
  for (const int batch : {70, 200}) {
    const json result =
        simulate_json({"--machine", "spr-h100", "--model", "opt-30b", "--policy", "neo", "--batch",
                       std::to_string(batch), "--input-tokens", "256", "--output-tokens", "32"})[0];
    const double latency_s = result["latency_s"];
    EXPECT_GT(result["busy_share"]["cpu"].get<double>(), batch == 70 ? 0.2 : 0.5) << batch;
    EXPECT_NEAR(result["plan_latency_s"].get<double>(), latency_s, 0.05 * latency_s) << batch;
    EXPECT_LE(result["lower_bound_s"].get<double>(), latency_s) << batch;
  }
}

TEST(SimulateCliTest, SameInputsGiveTheSameBits) {
  const Arguments point = {"--model",        "opt-30b", "--machine",       "spr-a100",
                           "--policy",       "flexgen", "--batch",         "64",
                           "--input-tokens", "64",      "--output-tokens", "4"};
  json first = simulate_json(point)[0];
  json second = simulate_json(point)[0];
  EXPECT_GT(first["tasks"], 100);
  first.erase("wall_s");
  second.erase("wall_s");
  EXPECT_EQ(first, second);
}

TEST(SimulateCliTest, StarPUsVariablesChangeNothing) {
  const Arguments point = {"simulate", "--model",        "opt-30b", "--machine",
                           "spr-h100", "--policy",       "lia",     "--batch",
                           "4",        "--input-tokens", "32",      "--output-tokens",
                           "3",        "--json"};
  const auto results = [&](const std::string& variable) {
    testing::CliProcess process("/usr/bin/env",
                                Arguments{variable, testing::sluice_program()} + point);
    const CliResult result = process.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const bool says_so = result.err.find("STARPU_") != std::string::npos;
    EXPECT_EQ(says_so, variable != "A=1") << result.err;
    json figures = json::parse(result.out)[0];
    figures.erase("wall_s");
    return figures;
  };
  const json plain = results("A=1");
  for (const char* variable : {"STARPU_SCHED=eager", "STARPU_NCPU=0", "STARPU_NCUDA=0",
                               "STARPU_CUDA_PIPELINE=4", "STARPU_MINIMUM_AVAILABLE_MEM=50",
                               "STARPU_SIMGRID_TRANSFER_COST=0", "STARPU_DISK_SWAP=/tmp"})
    EXPECT_EQ(results(variable), plain) << variable;
}

TEST(SimulateCliTest, ItsTraceHasItsFigures) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  const json result = simulate_json(
      {"--machine", RoundMachine{}.write(folder), "--model", "opt-30b", "--policy", "flexgen",
       "--batch", "4", "--input-tokens", "16", "--output-tokens", "3", "--trace", trace})[0];
  const CliResult read = run_cli({"trace", trace, "--json"});
  ASSERT_EQ(read.exit_code, 0) << read.err;
  const json report = json::parse(read.out);
  EXPECT_EQ(report.at("tasks"), result["tasks"]);
  double busy_s = 0;
  for (const json& worker : report.at("workers"))
    busy_s += worker.at("busy_ns").get<double>() * 1e-9;
  const double simulated_s = result["simulated_s"];
  const json& shares = result["busy_share"];
  EXPECT_NEAR(busy_s, (shares["cpu"].get<double>() + shares["gpu"].get<double>()) * simulated_s,
              1e-4 * simulated_s);
  double bytes = 0;
  for (const json& link : report.at("links")) bytes += link.at("bytes").get<double>();
  const json& moved = result["bytes_moved"];
  EXPECT_NEAR(bytes, moved["link to gpu"].get<double>() + moved["link to cpu"].get<double>(),
              1e-6 * bytes);
  expect_failure(simulate({"--batch", "1,2", "--trace", folder.file("other")}), 2, {"--trace"});
  testing::expect_pajeng_agrees(trace, report);
}

/// KV that lives in HBM is cleared there before the run begins.
TEST(SimulateCliTest, WhatComesBeforeTheRunCountsInNoFigure) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  const json result = simulate_json({"--model", "llama-3.1-8b", "--machine", "icelake-a100-ssd",
                                     "--policy", "gpu-only", "--batch", "1", "--input-tokens", "16",
                                     "--output-tokens", "1", "--trace", trace})[0];
  const CliResult read = run_cli({"trace", trace, "--json"});
  ASSERT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(json::parse(read.out).at("tasks"), result["tasks"]);
  EXPECT_LE(result["busy_share"]["gpu"].get<double>(), 1 + 1e-9);
}

/// What stays in HBM was counted as StarPU's and as ours.
TEST(SimulateCliTest, ItsTraceHasAsMuchInHbmAsIsSimulated) {
  const TemporaryFolder folder;
  for (const char* policy : {"gpu-only", "lia"}) {
    const std::string trace = folder.file(policy);
    const json result =
        simulate_json({"--machine", "spr-h100", "--model", "opt-30b", "--policy", policy, "--batch",
                       "4", "--input-tokens", "16", "--output-tokens", "3", "--trace", trace})[0];
    const json report = json::parse(run_cli({"trace", trace, "--json"}).out);
    const double peak_bytes = report.at("peak_bytes").back().at("bytes");  // hbm has the last node
    EXPECT_EQ(peak_bytes, result["bytes"]["hbm"].get<double>()) << policy;
    EXPECT_GT(peak_bytes, 0) << policy;
  }
}

/// Reading a layer's weights: 3 h^2 of qkv, 1 of the projection, 4 and 4 of fc1 and fc2.
TEST(SimulateCliTest, ItsTraceCutsStagesIntoSublayers) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  simulate_json({"--machine", RoundMachine{}.write(folder), "--model", "opt-30b", "--policy",
                 "cpu-only", "--input-tokens", "16", "--output-tokens", "3", "--trace", trace});
  const json report = json::parse(run_cli({"trace", trace, "--json"}).out);
  double all_ns = 0;
  std::map<std::string, double> sublayer_ns;
  for (const json& worker : report.at("workers")) {
    all_ns += worker.at("busy_ns").get<double>();
    for (const auto& [name, ns] : worker.at("sublayer_ns").items())
      sublayer_ns[name] += ns.get<double>();
  }
  const double layers = 48 * layer_bytes / (48 * layer_bytes + head_bytes);
  EXPECT_NEAR(sublayer_ns["qkv"] / all_ns, layers * 3 / 12, 0.01);
  EXPECT_NEAR(sublayer_ns["out_proj"] / all_ns, layers * 1 / 12, 0.01);
  EXPECT_NEAR(sublayer_ns["fc1"] / all_ns, layers * 4 / 12, 0.01);
  EXPECT_NEAR(sublayer_ns["fc2"] / all_ns, layers * 4 / 12, 0.01);
  EXPECT_GT(sublayer_ns["attention"], 0);
  testing::expect_pajeng_agrees(trace, report);
}

TEST(SimulateCliTest, TheTraceOfADiskSaysThatTheGpuWaitsForIt) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  const json result = beside_disk(flexgen_from_disk() + Arguments{"--trace", trace});
  const CliResult read = run_cli({"trace", trace, "--json"});
  ASSERT_EQ(read.exit_code, 0) << read.err;
  const json report = json::parse(read.out);
  const json& disk_link = report.at("links").back();
  EXPECT_NEAR(disk_link.at("bytes").get<double>(), result["bytes_moved"]["disk"].get<double>(), 1);
  // Of the ten longest gaps those between layers are the GPU's.
  int num_waits = 0;
  for (const json& gap : report.at("gaps")) {
    EXPECT_NE(gap.at("cause"), "scheduling") << gap;
    if (gap.at("cause") == "data") ++num_waits;
  }
  EXPECT_GT(num_waits, 0);
}

TEST(SimulateCliTest, JsonHasThePlansFieldsAndItsOwn) {
  const Arguments point = {"--model", "opt-30b",        "--machine", "spr-a100",        "--policy",
                           "lia",     "--input-tokens", "64",        "--output-tokens", "4"};
  const Arguments plan = Arguments{"plan"} + point + Arguments{"--json"};
  const json planned = json::parse(run_cli(plan).out)[0];
  const json simulated = simulate_json(point)[0];
  for (const auto& [key, value] : planned.items()) EXPECT_TRUE(simulated.contains(key)) << key;
  for (const char* key : {"simulated_s", "wall_s", "tasks", "busy_share", "bytes_moved"})
    EXPECT_TRUE(simulated.contains(key)) << key;
  // LIA's counting.
  EXPECT_DOUBLE_EQ(simulated["tokens_per_s"].get<double>(),
                   4 / simulated["latency_s"].get<double>());
  EXPECT_DOUBLE_EQ(simulated["simulated_s"].get<double>(), simulated["latency_s"].get<double>());
}

TEST(SimulateCliTest, ListsKeepGoingPastAPointThatCannotBe) {
  const CliResult result = simulate({"--model", "opt-30b", "--machine", "spr-a100", "--policy",
                                     "cpu-only,gpu-only", "--output-tokens", "2", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json points = json::parse(result.out);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_GT(points[0]["latency_s"], 0);
  EXPECT_NE(points[1]["problem"].get<std::string>().find("hbm"), std::string::npos);
}

TEST(SimulateCliTest, APolicysFileFindsItsSibling) {
  const std::filesystem::path folder = SLUICE_SHIPPED_DIR;
  const Arguments point = {"--model", "opt-1.3b", "--output-tokens", "2", "--policy"};
  const Arguments by_file = point + Arguments{(folder / "cpu-only.so").string()};
  const Arguments by_name = point + Arguments{"cpu-only"};
  EXPECT_EQ(simulate_json(by_file)[0]["latency_s"], simulate_json(by_name)[0]["latency_s"]);

  const TemporaryFolder alone;
  std::filesystem::copy(folder / "cpu-only.so", alone.path() / "mine.so");
  const Arguments without = point + Arguments{(alone.path() / "mine.so").string()};
  expect_failure(simulate(without), 1, {"mine.simgrid.so", "sluice_add_policy"});
}

TEST(SimulateCliTest, WhatIsWrongIsOneLine) {
  const TemporaryFolder folder;
  const auto on = [&](const RoundMachine& machine, const char* policy) {
    return simulate({"--machine", machine.write(folder), "--model", "opt-30b", "--policy", policy});
  };
  RoundMachine machine;
  const Arguments too_long = {"--machine", machine.write(folder), "--model", "opt-30b", "--policy",
                              "cpu-only",  "--input-tokens"};
  expect_failure(
      simulate(too_long + Arguments{"2016", "--output-tokens", "34"}), 1,
      {"34 tokens out after 2016 in, expected at most 33: the model has 2048 positions"});
  expect_failure(simulate(too_long + Arguments{"2049", "--output-tokens", "1"}), 1,
                 {"2049 tokens in, expected at most the model's 2048 positions"});
  machine.link_gb_per_s = 0;
  expect_failure(on(machine, "lia"), 1, {"links.0.bandwidth_gb_per_s.value is 0"});
  machine = {.hbm_gib = 0.5};
  expect_failure(on(machine, "lia"), 1, {"hbm", "which holds 512.0 MiB"});
  machine = {.ddr_gib = 32};
  expect_failure(on(machine, "cpu-only"), 1, {"ddr", "which holds 32.00 GiB"});
  expect_failure(on({}, "nope"), 1, {"no such policy"});
  expect_failure(on({}, "lia,nope"), 1, {"no such policy"});
  expect_failure(simulate({"--policy", "lia,cpu-only", "--policy-option", "opt1=off"}), 2,
                 {"cpu-only", "opt1"});
  expect_failure(simulate({"--machine", "spr-a101"}), 1, {"spr-a101", "spr-a100"});
  expect_failure(simulate({"--batch", "0"}), 2, {"--batch"});
  expect_failure(simulate({"--parameters-tier", "hbm"}), 2,
                 {"--parameters-tier hbm: expected ddr or cxl"});
  expect_failure(simulate({"--machine", machine.write(folder), "--model", "opt-30b", "--policy",
                           "cpu-only", "--parameters-tier", "cxl"}),
                 1, {"--parameters-tier cxl: the machine has no such memory (it has hbm, ddr)"});
  expect_failure(simulate({"--kv-tier", "hbm"}), 2, {"--kv-tier hbm: expected ddr, cxl or disk"});
  expect_failure(simulate({"--parameters-tier", "disk"}), 2,
                 {"--parameters-tier disk: expected ddr or cxl"});
  expect_failure(simulate({"--machine", machine.write(folder), "--model", "opt-30b", "--policy",
                           "cpu-only", "--kv-tier", "disk"}),
                 1, {"--kv-tier disk: the machine has no such memory (it has hbm, ddr)"});
  expect_failure(simulate({"--machine", "this", "--rates", "40"}), 2, {"--rates 40", "TFLOP/s"});
  expect_failure(simulate({"--machine", "this", "--rates", "40,0"}), 2, {"--rates 40,0"});
  expect_failure(simulate({"--machine", "spr-a100", "--rates", "40,1"}), 1,
                 {"--rates", "spr-a100"});
  expect_failure(simulate({"--machine", "this", "--threads", "0"}), 2, {"--threads 0"});
  expect_failure(simulate({"--machine", "spr-a100", "--threads", "1"}), 1,
                 {"--threads", "spr-a100"});
  expect_failure(simulate({"--machine", "this", "--model", "opt-30b", "--threads", "509"}), 1,
                 {"sluice calibrate --model opt-30b --threads 509"});
  machine = {.disk_gb_per_s = 2};
  for (const auto& [also, what] : {std::pair{"also=embedding", "keeps the embedding on a disk"},
                                   {"also=head", "keeps the LM head on a disk"}}) {
    expect_failure(simulate({"--machine", machine.write(folder), "--model", "opt-30b", "--policy",
                             SLUICE_HALF_ON_DISK, "--policy-option", also}),
                   1, {"half-on-disk", what});
  }
}

TEST(SimulateCliTest, APolicyThatHangsEndsWithTheFirstCtrlC) {
  const TemporaryFolder folder;
  testing::CliProcess process(
      "/usr/bin/env",
      {"TMPDIR=" + folder.path().string(), testing::sluice_program(), "simulate", "--machine",
       "spr-a100", "--model", "opt-125m", "--policy", SLUICE_HANGING_POLICY});
  testing::wait_for_lines(process.output_path(), 1);  // it has been asked
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "sluice: interrupted\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SimulateCliTest, AReaderThatGoesAwayLeavesTheTrace) {
  const TemporaryFolder folder;
  testing::CliProcess process(
      "/usr/bin/env",
      {"bash", "-c",
       "'" + testing::sluice_program() + "' simulate --model opt-125m --output-tokens 2 --trace '" +
           folder.file("t") + "' 2>&1 | true"});
  process.wait();
  EXPECT_TRUE(std::filesystem::exists(folder.file("t/perfetto.json")));
}

TEST(SimulateCliTest, AFullDiskIsOneLineWithoutATrace) {
  const TemporaryFolder folder;
  testing::CliProcess process(
      "/usr/bin/env", {"bash", "-c",
                       "trap '' XFSZ; ulimit -f 20; exec '" + testing::sluice_program() +
                           "' simulate --model opt-125m --machine spr-a100 --policy cpu-only "
                           "--output-tokens 20 --trace '" +
                           folder.file("t") + "'"});
  const CliResult result = process.wait();
  expect_failure(result, 1, {folder.file("t")});
  EXPECT_EQ(result.err.find("write buffer"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder.file("t")));
}

TEST(SimulateCliTest, AFolderForTemporaryFilesThatIsNoneIsSaid) {
  for (const char* folder : {"/nowhere", "/dev/null", "/proc"}) {
    testing::CliProcess process(
        "/usr/bin/env",
        {std::string("TMPDIR=") + folder, testing::sluice_program(), "simulate", "--machine",
         "spr-a100", "--model", "opt-30b", "--policy", "cpu-only", "--output-tokens", "1"});
    expect_failure(process.wait(), 1, {"TMPDIR", "can be written"});
  }
}

const Arguments on_two_sockets = {"simulate",    "--policy",       "cpu-only",   "--machine",
                                  "xeon-6230-2", "--model",        "llama-160m", "--batch",
                                  "1",           "--input-tokens", "32",         "--output-tokens",
                                  "16",          "--json"};

json simulated_by(const std::string& plan) {
  const CliResult result = run_cli(on_two_sockets + Arguments{"--cpu-plan", plan});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out)[0];
}

/// In turn, a core reads half of a weight from the other socket, which is slower. What decodes by
/// fewer cores loses nothing of memory's rate, and prompts have them all.
TEST(SimulateCliTest, CpuPlanChangesWhatAMachineOfTwoSocketsTakes) {
  const json interleaved = simulated_by("interleaved");
  const json by_node = simulated_by("static");
  const json found = simulated_by("auto");
  EXPECT_EQ(by_node["cpu_plan"]["decode"]["groups"].size(), 2U);
  EXPECT_EQ(interleaved["cpu_plan"]["decode"]["groups"].size(), 1U);
  EXPECT_LT(by_node["tpot_s"], interleaved["tpot_s"]);
  EXPECT_LE(found["tpot_s"].get<double>(), by_node["tpot_s"].get<double>() * 1.001);
  EXPECT_TRUE(found["cpu_plan"]["prefill"]["left_out"].empty());
  // The graphs run by what the plan predicts, but for what a task system adds.
  const double predicted = by_node["cpu_plan"]["decode"]["predicted_s"];
  EXPECT_NEAR(by_node["tpot_s"].get<double>(), predicted, 0.25 * predicted);
  const CliResult words =
      run_cli({"simulate", "--machine", "xeon-6230-2", "--model", "llama-160m", "--batch", "1",
               "--input-tokens", "32", "--output-tokens", "16", "--cpu-plan", "static"});
  EXPECT_NE(words.out.find("CPU plan prefill 40 cores in 2 groups; decode 40 cores in 2 groups\n"),
            std::string::npos)
      << words.out;
}

TEST(SimulateCliTest, CpuPlanOfAMachineWithoutCoresIsRefused) {
  const Arguments call = {"simulate", "--model", "opt-125m", "--policy", "cpu-only", "--machine"};
  expect_failure(run_cli(call + Arguments{"spr-a100", "--cpu-plan", "static"}), 1,
                 {"--cpu-plan", "spr-a100 does not describe its CPU's cores"});
  expect_failure(run_cli(call + Arguments{"this", "--cpu-plan", "static"}), 1,
                 {"--cpu-plan", "--machine"});
  expect_failure(run_cli(on_two_sockets + Arguments{"--cpu-plan", "statik"}), 1,
                 {"--cpu-plan statik", "no such file"});
}

}  // namespace
}  // namespace sluice
