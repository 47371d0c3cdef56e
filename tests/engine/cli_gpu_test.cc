// `--device cuda` seen from outside: StarPU's CUDA driver, its memory and its transfers, and our
// kernels; with an emulated GPU, or with the real one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <regex>
#include <thread>

#include "tests/engine/prompts_run.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// The first GPU that the program sees: what `info` says of it.
const json& gpu() {
  static const json found = [] {
    const json devices = json::parse(run_cli({"info", "--json"}).out).at("cuda").at("devices");
    return devices.empty() ? json() : devices[0];
  }();
  return found;
}
bool is_emulated() { return gpu().at("name") == "emulated CUDA device"; }

/// A GPU, or nothing.
class CliGpuTest : public testing::PromptsRunTest {
 protected:
  explicit CliGpuTest(const testing::Prompts& prompts = {.texts = {"Once upon a time", "The dog",
                                                                   "Lily and Tom"},
                                                         .batch = 2,
                                                         .max_tokens = 4})
      : PromptsRunTest(prompts) {}

  void SetUp() override {
    if (gpu().is_null()) GTEST_SKIP() << "no GPU: the program sees none";
  }

  /// The run within so little memory; on a real GPU, where CUDA and the kernels need more of it the
  /// more multiprocessors there are, with as little as its refusal names.
  static CliResult run_within(const Arguments& arguments, int memory_mib) {
    const auto run = [&](const std::string& budget) {
      return run_cli(arguments + Arguments{"--device", "cuda", "--hbm", budget});
    };
    const CliResult result = run(fmt::format("{}MiB", memory_mib));
    const std::string named = named_budget(result);
    return is_emulated() || named.empty() ? result : run(named);
  }
  /// "1200MiB", which a refusal says would do; nothing if it says none.
  static std::string named_budget(const CliResult& refused) {
    std::smatch named;
    const std::regex suggestion("--hbm ([0-9]+MiB) would do\n");
    return std::regex_search(refused.err, named, suggestion) ? named[1].str() : "";
  }

  /// Tokens as the CPU alone gives them, within the budget.
  void expect_the_cpus_tokens(const Arguments& policy, int memory_mib) const {
    const CliResult expected = run_cli(generate({"--policy", "cpu-only", "--device", "cpu"}));
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    const CliResult result = run_within(generate(policy), memory_mib);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, expected.out);
    const json device = stats().at("device");
    EXPECT_EQ(device.at("kind"), "cuda");
    EXPECT_LE(stats().at("peak_bytes").at("hbm").get<std::uint64_t>(),
              device.at("memory_bytes").get<std::uint64_t>());
  }
  std::uint64_t moved(const char* way) const {
    return stats().at("device").at(way).get<std::uint64_t>();
  }
};

TEST_F(CliGpuTest, KernelsThatComeAgainAreLaunchedAsGraphs) {
  const test::TemporaryFolder files;
  const auto run = [&](const char* tokens, const Arguments& device) {
    return run_cli(Arguments{"generate", "--prompt", "Once upon a time", "--max-tokens", tokens,
                             "--temperature", "0", "--dtype", "f32", "-q", "--stats",
                             files.file("stats")} +
                   device);
  };
  const Arguments on_gpu = {"--device", "cuda", "--policy", "gpu-only"};
  const auto launches = [&](const char* graphs, const char* tokens) -> std::int64_t {
    const CliResult expected = run(tokens, {"--device", "cpu"});
    EXPECT_EQ(expected.exit_code, 0) << expected.err;
    const CliResult result = run(tokens, on_gpu + Arguments{"--cuda-graphs", graphs});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out);
    return json::parse(testing::content_of(files.file("stats")))
        .at("device")
        .at("cuda_graphs")
        .at("launched");
  };
  // All layers are one task, which takes turns between a few addresses.
  EXPECT_GT(launches("on", "20"), 10);
  EXPECT_EQ(launches("off", "10"), 0);
  expect_failure(run("6", on_gpu + Arguments{"--cuda-graphs", "yes"}), 2,
                 {"--cuda-graphs yes", "on or off"});
}

/// An emulated one takes hours for the whole.
TEST_F(CliGpuTest, CalibrationTimesItsKernelsAndItsLink) {
  const test::TemporaryFolder data;
  CliProcess process("/usr/bin/env",
                     {"XDG_DATA_HOME=" + data.path().string(), testing::sluice_program(),
                      "calibrate", "--model", "tiny", "--dtype", "f32", "--device", "cuda"});
  const auto file = [&]() -> json {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(data.path())) {
      if (entry.path().extension() == ".json")
        return json::parse(testing::content_of(entry.path().string()));
    }
    return {};
  };
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::minutes(4)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const json found = file();
    if (!found.is_null() && !found.at("points").empty()) break;
  }
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const json found = file();
  EXPECT_EQ(found.at("setup").at("device"), gpu().at("name"));
  // Both ways in each round that has begun; a fast device is in its second one by then.
  EXPECT_GE(found.at("links").size(), 2U);
  EXPECT_EQ(found.at("links").size() % 2, 0U);
  ASSERT_FALSE(found.at("points").empty());
  const json& sample = found.at("points").at(0).at("samples").at(0);
  for (const char* sublayer :
       {"qkv_us", "attention_us", "out_proj_us", "fc1_us", "fc2_us", "lm_head_us"})
    EXPECT_GT(sample.at(sublayer), 0) << sublayer;
}

/// LIA's policy, told where each sublayer runs.
Arguments placed(const std::string& placement) {
  return {"--policy",        "lia",
          "--policy-option", "decode=" + placement,
          "--policy-option", "prefill=" + placement,
          "--policy-option", "opt1=off"};
}

class CliGpuPlacementTest : public CliGpuTest, public ::testing::WithParamInterface<std::string> {};

/// Less than the layers' weights take, which are 11 MiB.
constexpr int tight_mib = 11;

TEST_P(CliGpuPlacementTest, GivesTheTokensOfTheCpuInTightMemory) {
  expect_the_cpus_tokens(placed(GetParam()), tight_mib);
  if (GetParam() == "111111") return;
  EXPECT_GT(moved("bytes_to_device"), 0U);
  EXPECT_GT(moved("bytes_from_device"), 0U);
}

/// Prompts whose values of one layer, and the scratch memory of kernels that compute all of them,
/// need more memory than there is.
class CliGpuMiniBatchTest : public CliGpuTest {
 protected:
  static testing::Prompts prompts() {
    testing::Prompts many{.texts = {}, .batch = 10, .max_tokens = 2};
    for (int i = 0; i < many.batch; ++i) {
      std::string& text = many.texts.emplace_back("0");
      for (int word = 1; word < 20 + i % 3; ++word) text += fmt::format(" {}", (i * word) % 10);
    }
    return many;
  }
  CliGpuMiniBatchTest() : CliGpuTest(prompts()) {}
};

TEST_F(CliGpuMiniBatchTest, PromptsAreCutWhereTheirValuesDoNotFit) {
  for (const auto& [policy, memory_mib] :
       {std::pair(Arguments{"--policy", "gpu-only"}, 23), std::pair(placed("000000"), 12),
        std::pair(placed("011000"), 12)}) {
    SCOPED_TRACE(policy.back());
    expect_the_cpus_tokens(policy, memory_mib);
    // A real one has more, which its kernels take.
    const int fewest = is_emulated() ? 3 : 1;
    EXPECT_GE(stats().at("device").at("prefill_mini_batches"), fewest);
  }
}

/// Requests whose KV does not fit beside the weights in memory of the embedded model's size.
class CliGpuTwoTiersTest : public CliGpuTest {
 protected:
  CliGpuTwoTiersTest() : CliGpuTest(testing::many_prompts(few_tokens)) {}
  static constexpr int few_tokens = 6;  // an emulated GPU takes a second for each of the batch's
};

TEST_F(CliGpuTwoTiersTest, KvOfSomeRequestsLivesInDdrAndAttendsOnTheCpu) {
  expect_the_cpus_tokens({"--policy", "neo"}, 20);
  const json decode = stats().at("placements").at("decode");
  EXPECT_GT(decode.value("000000", 0), 0) << decode;
  EXPECT_GT(decode.value("011000", 0), 0) << decode;
}

std::vector<std::string> all_placements() {
  constexpr unsigned count = 64;
  std::vector<std::string> placements;
  placements.reserve(count);
  for (unsigned bits = 0; bits < count; ++bits)
    placements.push_back(std::bitset<6>(bits).to_string());
  return placements;
}
INSTANTIATE_TEST_SUITE_P(Placements, CliGpuPlacementTest, ::testing::ValuesIn(all_placements()),
                         [](const auto& of) { return "p" + of.param; });

/// A policy, and the memory that it has.
struct Case {
  std::string policy;
  int memory_mib;
};
std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.policy; }

class CliGpuPolicyTest : public CliGpuTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CliGpuPolicyTest, GivesTheTokensOfTheCpu) {
  expect_the_cpus_tokens({"--policy", GetParam().policy}, GetParam().memory_mib);
  EXPECT_GT(moved("bytes_to_device"), mebibyte);
  EXPECT_GT(moved("bytes_from_device"), 0U);
}

INSTANTIATE_TEST_SUITE_P(Policies, CliGpuPolicyTest,
                         ::testing::Values(Case{"lia", 48}, Case{"gpu-only", 48}, Case{"helm", 48},
                                           Case{"flexgen", 48}, Case{"neo", 48}, Case{"lia", 1200},
                                           Case{"flexgen", 16}),
                         [](const auto& of) {
                           std::string name =
                               fmt::format("{}_{}", of.param.policy, of.param.memory_mib);
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(CliGpuTest, WeightsThatDoNotFitCrossAgainForEachIteration) {
  const auto bytes_to_device = [&](int tokens) {
    const CliResult result =
        run_within(Arguments{"generate", "--prompt", "Once upon a time", "--dtype", "f32",
                             "--ignore-eos", "--temperature", "0", "-q", "--max-tokens",
                             std::to_string(tokens), "--stats", stats_path} +
                       placed("011000"),
                   tight_mib);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return stats().at("device").at("bytes_to_device").get<double>();
  };
  // Sublayers 1, 4, 5 and 6 of the embedded model's six layers in f32.
  constexpr double weights = 6 * 4 * 256.0 * (384 + 256 + 3 * 384);
  const double each = (bytes_to_device(8) - bytes_to_device(4)) / 4;
  EXPECT_GT(each, 0.4 * weights);  // some of it may still be there
  EXPECT_LT(each, 1.1 * weights);
}

TEST_F(CliGpuTest, WeightsStreamFromADisk) {
  expect_the_cpus_tokens(
      placed("001000") + Arguments{"--disk", folder.file("disk"), "--ddr", "12MiB"}, tight_mib);
  const json disk = stats().at("disk");
  EXPECT_GT(disk.at("read_bytes").get<std::uint64_t>(),
            disk.at("weight_bytes").get<std::uint64_t>());
  EXPECT_LE(disk.at("peak_staged_bytes").get<std::uint64_t>(),
            disk.at("staging_limit_bytes").get<std::uint64_t>());
}

TEST_F(CliGpuTest, WeightsStreamFromCxlMemory) {
  expect_the_cpus_tokens(placed("001000") + Arguments{"--cxl-nodes", "emulate:1"}, tight_mib);
  const json moves = stats().at("moved");
  const auto from_cxl = std::find_if(moves.begin(), moves.end(),
                                     [](const json& pair) { return pair.at("from") == "cxl"; });
  ASSERT_NE(from_cxl, moves.end());
  EXPECT_EQ(from_cxl->at("to"), "hbm");
  EXPECT_GT(from_cxl->at("bytes").get<std::uint64_t>(), stats().at("cxl").at("weight_bytes"));
}

TEST_F(CliGpuTest, TooLittleMemoryIsSaidWithWhatWouldDo) {
  if (!is_emulated()) GTEST_SKIP() << "sizes of the emulated GPU";
  expect_failure(run_cli({"generate", "--prompt", "A", "--dtype", "f32", "--device", "cuda",
                          "--policy", "gpu-only", "--hbm", "3MiB"}),
                 1, {"kernels alone need", "CUDA and cuBLAS 1.0 MiB", "would do"});
  expect_failure(run_cli({"generate", "--prompt", "A", "--dtype", "f32", "--device", "cuda",
                          "--policy", "gpu-only", "--hbm", "8MiB"}),
                 1, {"hbm", "needs", "would do"});
  expect_failure(run_cli({"generate", "--prompt", "A", "--device", "cuda", "--hbm", "1TiB"}), 1,
                 {"--hbm 1TiB", "free of"});
}

TEST_F(CliGpuTest, WhatARefusalNamesDoes) {
  const Arguments run = {"generate", "--prompt", "A",        "--dtype",  "f32",      "--max-tokens",
                         "2",        "-q",       "--policy", "gpu-only", "--device", "cuda"};
  const auto within = [&](const std::string& hbm) {
    return run_cli(run + Arguments{"--hbm", hbm});
  };
  const std::string named = named_budget(within("1MiB"));
  ASSERT_NE(named, "");
  const CliResult enough = within(named);
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
  EXPECT_EQ(within(fmt::format("{}MiB", std::stoi(named) - 1)).exit_code, 1);
}

TEST_F(CliGpuTest, HbmIsOfTheGpu) {
  for (const char* device : {"cpu", "standin:64MiB"}) {
    expect_failure(run_cli({"generate", "--prompt", "A", "--device", device, "--hbm", "10MiB"}), 2,
                   {"--hbm", device});
  }
}

TEST_F(CliGpuTest, InfoShowsTheDevice) {
  const CliResult result = run_cli({"info", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json info = json::parse(result.out);
  EXPECT_EQ(info.at("memory_nodes").back().at("tier"), "hbm");
}

/// Of a machine whose GPU cannot be had: SLUICE_EMULATED_GPU says why.
class CliLackingGpuTest : public CliGpuTest {
 protected:
  void SetUp() override {
    if (gpu().is_null() || !is_emulated()) GTEST_SKIP() << "an emulated GPU's states";
  }
  static CliResult run_with(const char* gpu, const Arguments& arguments) {
    return CliProcess("/usr/bin/env", Arguments{std::string("SLUICE_EMULATED_GPU=") + gpu,
                                                testing::sluice_program()} +
                                          arguments)
        .wait();
  }
};

TEST_F(CliLackingGpuTest, WhyIsSaidInALine) {
  const Arguments generate = {"generate", "--prompt", "A", "--device", "cuda"};
  expect_failure(run_with("none", generate), 1, {"--device cuda", "no CUDA-capable device"});
  expect_failure(run_with("busy", generate), 1, {"--device cuda", "busy or unavailable"});
}

TEST_F(CliLackingGpuTest, TheCpuIsTheDefault) {
  const Arguments generate = {"generate", "--prompt", "Once", "--max-tokens", "2", "-q"};
  const CliResult without = run_with("none", generate);
  EXPECT_EQ(without.exit_code, 0) << without.err;
  EXPECT_EQ(without.err, "");
  const CliResult busy = run_with("busy", generate);
  EXPECT_EQ(busy.exit_code, 0) << busy.err;
  EXPECT_EQ(busy.out, without.out);
  EXPECT_NE(busy.err.find("on the CPU, as the GPU cannot be used"), std::string::npos) << busy.err;
}

}  // namespace
}  // namespace sluice
