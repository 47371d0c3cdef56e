// `--device standin:MEMORY`: the GPU's side of a placement in a second process, seen from outside.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/engine/pj_dump.h"
#include "tests/engine/prompts_run.h"
#include "tests/engine/serve/serving.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
/// Of the embedded model in f32: its layers alone have 11 MiB.
constexpr int smaller_than_weights_mib = 10;

/// A policy, and what it is told.
struct Case {
  std::string name;
  Arguments policy;
  std::string dtype;
  int memory_mib;
};

std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.name; }

class CliDeviceTest : public testing::PromptsRunTest {};

class CliDevicePolicyTest : public CliDeviceTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CliDevicePolicyTest, GivesTheTokensOfTheCpuWithinItsMemory) {
  const Case& of = GetParam();
  const CliResult expected = run_cli(generate({"--policy", "cpu-only"}, of.dtype));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const Arguments with_device = generate(of.policy, of.dtype) +
                                Arguments{"--device", fmt::format("standin:{}MiB", of.memory_mib)};
  const CliResult dry = run_cli(with_device + Arguments{"--dry-run", "--json"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const json foreseen = json::parse(dry.out).at("tiers").at(0);
  const CliResult result = run_cli(with_device);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, expected.out);
  const json device = stats().at("device");
  EXPECT_EQ(device.at("kind"), "stand-in");
  EXPECT_EQ(device.at("memory_bytes"), static_cast<std::uint64_t>(of.memory_mib) * mebibyte);
  EXPECT_GT(device.at("bytes_to_device").get<std::uint64_t>(), mebibyte);
  EXPECT_GT(device.at("bytes_from_device").get<std::uint64_t>(), 0U);
  const auto peak = stats().at("peak_bytes").at("hbm").get<std::uint64_t>();
  EXPECT_GT(peak, mebibyte);
  EXPECT_LE(peak, device.at("memory_bytes").get<std::uint64_t>());
  EXPECT_EQ(foreseen.at("tier"), "hbm");
  EXPECT_EQ(foreseen.at("available_bytes"), device.at("memory_bytes"));
  EXPECT_LE(foreseen.at("total_bytes").get<std::uint64_t>(),
            foreseen.at("available_bytes").get<std::uint64_t>());
}

TEST_F(CliDeviceTest, StarPUsVariablesDoNotReplaceThePolicysScheduler) {
  const std::string trace = folder.file("trace");
  CliProcess process("/usr/bin/env",
                     Arguments{"STARPU_SCHED=eager", "STARPU_NCPU=3", testing::sluice_program()} +
                         generate({"--policy", "gpu-only"}, "bf16") +
                         Arguments{"--device", "standin:64MiB", "--trace", trace});
  const CliResult result = process.wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("STARPU_SCHED is ignored"), std::string::npos) << result.err;
  const json report = json::parse(run_cli({"trace", trace, "--json"}).out);
  EXPECT_EQ(report.at("workers").size(), 2U);
  for (const json& worker : report.at("workers"))
    EXPECT_EQ(worker.at("tasks") == 0, worker.at("name") != "stand-in") << worker;
}

const Arguments lia_decode = {"--policy",        "lia",
                              "--policy-option", "decode=011000",
                              "--policy-option", "prefill=000000",
                              "--policy-option", "opt1=off"};

TEST_F(CliDeviceTest, PajengReadsTheTrace) {
  const std::string trace = folder.file("trace");
  const CliResult result =
      run_cli(generate(lia_decode, "f32") +
              Arguments{"--device", fmt::format("standin:{}MiB", smaller_than_weights_mib),
                        "--trace", trace});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(run_cli({"trace", trace, "--json"}).out);
  EXPECT_GT(report.at("links").size(), 0U);
  for (const json& worker : report.at("workers")) {
    EXPECT_EQ(worker.at("predicted_sublayers"), worker.at("name") == "stand-in") << worker;
    for (const char* name : {"qkv", "attention", "out_proj", "fc1", "fc2"})
      EXPECT_EQ(worker.at("sublayer_ns").contains(name),
                worker.at("name") == "stand-in" || std::string(name) == "attention")
          << name << " of " << worker;
  }
  testing::expect_pajeng_agrees(trace, report);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, CliDevicePolicyTest,
    ::testing::Values(Case{"lia_resident", {"--policy", "lia"}, "f32", 32},
                      Case{"lia_streams_f32", lia_decode, "f32", smaller_than_weights_mib},
                      Case{"lia_streams_bf16", lia_decode, "bf16", 5},
                      Case{"flexgen_f32", {"--policy", "flexgen"}, "f32", smaller_than_weights_mib},
                      Case{"flexgen_bf16", {"--policy", "flexgen"}, "bf16", 6},
                      Case{"helm_f32", {"--policy", "helm"}, "f32", smaller_than_weights_mib},
                      Case{"gpu_only_f32", {"--policy", "gpu-only"}, "f32", 32},
                      Case{"gpu_only_bf16", {"--policy", "gpu-only"}, "bf16", 32}),
    [](const auto& of) { return of.param.name; });

/// Requests whose KV does not fit beside the weights in the memory of the embedded model's size.
class CliDeviceTwoTiersTest : public testing::PromptsRunTest {
 protected:
  CliDeviceTwoTiersTest() : PromptsRunTest(testing::many_prompts()) {}

  /// The prompts, all at once, against a run of their own on the CPU.
  void expect_texts_as_alone(testing::Serving& server) const {
    const testing::Prompts many = testing::many_prompts();
    std::vector<json> bodies;
    for (const std::string& prompt : many.texts)
      bodies.push_back({{"prompt", prompt},
                        {"max_tokens", many.max_tokens},
                        {"temperature", 0},
                        {"ignore_eos", true}});
    const std::vector<std::string> texts = server.streamed_at_once(bodies);
    const CliResult alone = run_cli({"generate", "--prompts", prompts_path, "--max-tokens",
                                     std::to_string(many.max_tokens), "--temperature", "0",
                                     "--ignore-eos", "--dtype", "f32", "-q"});
    std::istringstream lines(alone.out);
    std::string line;
    for (const std::string& text : texts) {
      ASSERT_TRUE(std::getline(lines, line));
      EXPECT_EQ(json::parse(line).at("text"), text);
    }
  }
};

TEST_F(CliDeviceTwoTiersTest, KvOfSomeRequestsLivesInDdrAndAttendsOnTheCpu) {
  const CliResult expected = run_cli(generate({"--policy", "cpu-only"}));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const CliResult result =
      run_cli(generate({"--policy", "neo"}) + Arguments{"--device", "standin:17MiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected.out);
  const json decode = stats().at("placements").at("decode");
  EXPECT_GT(decode.value("000000", 0), 0) << decode;
  EXPECT_GT(decode.value("011000", 0), 0) << decode;
}

/// Pages of KV go from the stand-in's memory to DDR, where their requests go on.
TEST_F(CliDeviceTwoTiersTest, RequestsThatMakeWayForOthersGiveTheirTokens) {
  testing::Serving server({"--max-sequences", "12", "--max-batch-tokens", "64", "--max-model-len",
                           "200", "--kv-tokens", "800", "--prefix-cache", "off", "--policy", "neo",
                           "--device", "standin:16MiB"});
  expect_texts_as_alone(server);
  const json live = server.live();
  EXPECT_EQ(live.at("pools").size(), 2U);
  EXPECT_GT(live.at("moved_out_bytes"), 0);
  EXPECT_EQ(live.at("swapped"), 0) << "nothing runs any more";
  for (const json& pool : live.at("pools")) EXPECT_EQ(pool.at("used_pages"), 0);
  ASSERT_EQ(live.at("devices").size(), 2U);
  EXPECT_EQ(live["devices"][0]["name"], "cpu");
  EXPECT_EQ(live["devices"][1]["name"], "standin");
  for (const json& device : live["devices"]) EXPECT_GT(device.at("busy_s"), 0);
  std::map<std::string, std::int64_t> moved;
  for (const json& one : live.at("moved"))
    moved[one["from"].get<std::string>() + " " + one["to"].get<std::string>()] = one["bytes"];
  // Swaps, and whatever else crosses, cross there.
  EXPECT_GE(moved["hbm ddr"], live["moved_out_bytes"].get<std::int64_t>());
  EXPECT_GT(moved["ddr hbm"], 0);
  EXPECT_EQ(server.stop().exit_code, 0);
}

/// A prompt's later pieces find its KV in DDR, and bring those pages alone.
TEST_F(CliDeviceTwoTiersTest, PromptsInPiecesGiveTheirTokens) {
  testing::Serving server({"--max-sequences", "12", "--max-batch-tokens", "40", "--max-model-len",
                           "200", "--kv-tokens", "2400", "--policy", "simple-offload", "--device",
                           "standin:20MiB"});
  expect_texts_as_alone(server);
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST_F(CliDeviceTest, WeightsThatDoNotFitCrossAgainForEachIteration) {
  const auto bytes_to_device = [&](int tokens) {
    const CliResult result = run_cli(
        Arguments{"generate", "--prompt", "Once upon a time", "--dtype", "f32", "--ignore-eos",
                  "--temperature", "0", "-q", "--max-tokens", std::to_string(tokens), "--stats",
                  stats_path, "--device", fmt::format("standin:{}MiB", smaller_than_weights_mib)} +
        lia_decode);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return stats().at("device").at("bytes_to_device").get<double>();
  };
  // Sublayers 1, 4, 5 and 6 of the embedded model's six layers in f32.
  constexpr double weights = 6 * 4 * 256.0 * (384 + 256 + 3 * 384);
  const double each = (bytes_to_device(20) - bytes_to_device(10)) / 10;
  EXPECT_GT(each, 0.5 * weights);  // some of it may still be there
  EXPECT_LT(each, 1.1 * weights);
}

/// The MiB of the setting that a refusal names, 0 if it names none.
int named_mib(const CliResult& refused) {
  const std::string before = "; --device standin:";
  const std::size_t found = refused.err.find(before);
  if (found == std::string::npos || !refused.err.ends_with("MiB would do\n")) return 0;
  return std::stoi(refused.err.substr(found + before.size()));
}

/// Both by the policy's plan and at real size: the setting that is named does, and a MiB less does
/// not.
TEST_F(CliDeviceTest, TooLittleMemoryIsSaidWithWhatWouldDo) {
  const std::vector<Arguments> policies = {
      {"--policy", "gpu-only"}, {"--policy", "flexgen"}, {"--policy", "helm"}, lia_decode};
  for (const Arguments& policy : policies) {
    SCOPED_TRACE(policy.at(1));
    const auto run = [&](int mib) {
      return run_cli(Arguments{"generate", "--prompt", "A", "--dtype", "f32", "--max-tokens", "4",
                               "-q", "--device", fmt::format("standin:{}MiB", mib)} +
                     policy);
    };
    const CliResult refused = run(1);
    expect_failure(refused, 1, {"would do"});
    const int mib = named_mib(refused);
    ASSERT_GT(mib, 1) << refused.err;
    const CliResult enough = run(mib);
    EXPECT_EQ(enough.exit_code, 0) << enough.err;
    const CliResult less = run(mib - 1);
    expect_failure(less, 1, {"would do"});
    EXPECT_GE(named_mib(less), mib);
  }
}

/// Prompts whose values of one layer need far more than the accelerator has.
class CliDeviceMiniBatchTest : public testing::PromptsRunTest {
 protected:
  static testing::Prompts prompts() {
    testing::Prompts many{.texts = {}, .batch = 40, .max_tokens = 4};
    for (int i = 0; i < many.batch; ++i) {
      std::string& text = many.texts.emplace_back();
      for (int word = 0; word < 90 + i % 5; ++word) text += fmt::format(" {}", (i * word) % 10);
    }
    return many;
  }
  CliDeviceMiniBatchTest() : PromptsRunTest(prompts()) {}

  CliResult run(const Arguments& policy, int mib) const {
    return run_cli(generate(policy) + Arguments{"--device", fmt::format("standin:{}MiB", mib)});
  }
  /// Hidden states, q, k, v, attention's output and the FFN's middle.
  static constexpr std::uint64_t row_bytes = 4 * (256 + 384 + 256 + 2 * 384);
};

/// With the least memory that does, hidden states of those that wait go to main memory and back.
TEST_F(CliDeviceMiniBatchTest, PromptsAreCutWhereTheirValuesDoNotFit) {
  const CliResult expected = run_cli(generate({"--policy", "cpu-only"}));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const Arguments lia = {"--policy", "lia", "--policy-option", "opt1=off"};
  for (const Arguments& policy :
       {Arguments{"--policy", "gpu-only"}, Arguments{"--policy", "flexgen"},
        lia + Arguments{"--policy-option", "prefill=000000", "--policy-option", "decode=000000"},
        lia + Arguments{"--policy-option", "prefill=011000", "--policy-option", "decode=011000"}}) {
    SCOPED_TRACE(policy.at(1) + " " + policy.back());
    const int mib = named_mib(run(policy, 2));
    ASSERT_GT(mib, 2);
    for (const int memory_mib : {mib, mib + 2}) {
      const CliResult result = run(policy, memory_mib);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, expected.out);
      const json device = stats().at("device");
      EXPECT_GE(device.at("prefill_mini_batches"), 3) << device;
      EXPECT_LE(stats().at("peak_bytes").at("hbm"), device.at("memory_bytes"));
      const auto rows = stats().at("prompt_tokens").get<std::uint64_t>();
      EXPECT_LT(device.at("memory_bytes").get<std::uint64_t>(), rows * row_bytes);
    }
  }
}

TEST_F(CliDeviceMiniBatchTest, BenchCutsItsPromptsTheSameWay) {
  const auto bench = [](int mib) {
    return run_cli({"bench",
                    "--model",
                    "tiny",
                    "--dtype",
                    "f32",
                    "--prompt-tokens",
                    "100",
                    "--gen-tokens",
                    "0",
                    "--batch",
                    "40",
                    "--repeat",
                    "1",
                    "--policy",
                    "lia",
                    "--policy-option",
                    "opt1=off",
                    "--policy-option",
                    "prefill=000000",
                    "--json",
                    "--device",
                    fmt::format("standin:{}MiB", mib)});
  };
  const int mib = named_mib(bench(2));
  ASSERT_GT(mib, 2);
  EXPECT_LT(static_cast<std::uint64_t>(mib) << 20, 40 * 100 * row_bytes);
  const CliResult result = bench(mib);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(json::parse(result.out).at(0).at("tokens_per_s"), 0);
}

TEST_F(CliDeviceTest, WrongDevicesAreUsageErrors) {
  for (const char* device : {"gpu", "standin", "standin:", "standin:much", "standin:10KiB"}) {
    SCOPED_TRACE(device);
    expect_failure(run_cli({"generate", "--prompt", "A", "--device", device}), 2, {"--device"});
  }
}

TEST_F(CliDeviceTest, ExplainShowsBothDevices) {
  const CliResult result =
      run_cli(Arguments{"generate", "--prompt", "Once upon a time", "--max-tokens", "8", "--dtype",
                        "f32", "--explain", "--device", "standin:512MiB"} +
              lia_decode);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Decode has sublayers 2 and 3 on the CPU, the others on the accelerator.
  const auto decode_row = [&](const char* sublayer) {
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string phase;
      std::string name;
      std::string device;
      words >> phase >> name >> device;
      if (phase == "decode" && name == sublayer) return device;
    }
    return std::string("not there");
  };
  EXPECT_EQ(decode_row("attention"), "cpu") << result.err;
  for (const char* sublayer : {"qkv", "out_proj", "fc1", "fc2"})
    EXPECT_EQ(decode_row(sublayer), "gpu") << result.err;
  for (const char* part : {"outside of the CPU's kernels", "outside of the accelerator's",
                           "flip point of decode", "twice the link to the GPU"})
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in " << result.err;
}

TEST_F(CliDeviceTest, OffloadThatDoesNotPayIsSaid) {
  const Arguments run = {"generate", "--prompt", "Once", "--max-tokens", "4"};
  const std::string said = "offloading is slower than not";
  const auto err_of = [&](const Arguments& more) {
    const CliResult result = run_cli(run + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  const Arguments stand_in = {"--device", "standin:64MiB"};
  EXPECT_NE(err_of(stand_in + Arguments{"--policy", "flexgen"}).find(said), std::string::npos);
  EXPECT_EQ(err_of(stand_in + Arguments{"--policy", "cpu-only"}).find(said), std::string::npos);
  EXPECT_EQ(err_of(stand_in + Arguments{"--policy", "flexgen", "-q"}), "");
  EXPECT_EQ(err_of({}).find(said), std::string::npos);
}

/// The processes that `parent` has started.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", parent));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

class CliDeviceDeathTest : public CliDeviceTest {
 protected:
  /// One prompt after the other, so that most are still to come when the first is written.
  Arguments long_run() const {
    return Arguments{
        "generate",     "--prompts", prompts_path,    "--batch",  "1",
        "--max-tokens", "300",       "--ignore-eos",  "--output", folder.file("out.jsonl"),
        "-q",           "--device",  "standin:32MiB", "--policy", "gpu-only"};
  }
};

TEST_F(CliDeviceDeathTest, AKilledStandInEndsTheRunAndFinishedLinesAreKept) {
  CliProcess process(long_run());
  testing::wait_for_lines(folder.file("out.jsonl"), 1);
  const std::vector<pid_t> children = children_of(process.id());
  ASSERT_EQ(children.size(), 1U);
  kill(children.front(), SIGKILL);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.err,
            "sluice: the stand-in accelerator's process has ended, killed by a signal; finished "
            "outputs are on disk; run again\n");
  EXPECT_GE(testing::json_lines(content_of(folder.file("out.jsonl"))).size(), 1U);
}

TEST_F(CliDeviceDeathTest, TheStandInGoesWithAKilledRun) {
  CliProcess process(long_run());
  testing::wait_for_lines(folder.file("out.jsonl"), 1);
  const std::vector<pid_t> children = children_of(process.id());
  ASSERT_EQ(children.size(), 1U);
  process.send(SIGKILL);
  process.wait();
  for (int i = 0; i < 1000 && kill(children.front(), 0) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(kill(children.front(), 0), 0);
}

TEST_F(CliDeviceDeathTest, CtrlCEndsTheRunAsEver) {
  CliProcess process(long_run());
  testing::wait_for_lines(folder.file("out.jsonl"), 1);
  process.send(SIGINT);
  EXPECT_EQ(process.wait().exit_code, 130);
}

/// The sockets of the system that wait for connections, by their inodes.
std::set<std::string> listening_sockets() {
  constexpr const char* tcp_listen = "0A";
  constexpr const char* unix_listen = "00010000";
  std::set<std::string> inodes;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix"}) {
    const bool is_tcp = std::string(path).find("tcp") != std::string::npos;
    std::ifstream table(path);
    for (std::string line; std::getline(table, line);) {
      std::istringstream text(line);
      const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
      const std::size_t state = 3;
      const std::size_t inode = is_tcp ? 9 : 6;
      if (words.size() > inode && words[state] == (is_tcp ? tcp_listen : unix_listen))
        inodes.insert("socket:[" + words[inode] + "]");
    }
  }
  return inodes;
}

/// Of which a process has a descriptor.
std::size_t num_sockets_of(pid_t process, const std::set<std::string>& sockets) {
  std::size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process), ignored))
    count += sockets.count(fs::read_symlink(entry.path(), ignored).string());
  return count;
}

TEST_F(CliDeviceDeathTest, NothingListensThatAStrangerCouldConnectTo) {
  CliProcess process(long_run());
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::size_t most = 0;
  while (content_of(folder.file("out.jsonl")).empty() && std::chrono::steady_clock::now() < end) {
    const std::set<std::string> listening = listening_sockets();
    most = std::max(most, num_sockets_of(process.id(), listening));
    for (const pid_t child : children_of(process.id()))
      most = std::max(most, num_sockets_of(child, listening));
  }
  ASSERT_NE(content_of(folder.file("out.jsonl")), "");
  EXPECT_EQ(children_of(process.id()).size(), 1U);
  EXPECT_EQ(most, 0U);
}

/// The modes of what a folder holds, by name; what goes meanwhile is left out.
std::map<std::string, unsigned> modes_in(const fs::path& folder) {
  std::map<std::string, unsigned> modes;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    struct stat status {};
    if (lstat(entry.path().c_str(), &status) == 0)
      modes[entry.path().filename()] = status.st_mode & 07777;
  }
  return modes;
}

TEST_F(CliDeviceTest, FoldersOfOursAreForTheUserAloneWhateverTheUmask) {
  const fs::path temporary = folder.path() / "tmp";
  const fs::path ours = folder.path() / "ours";
  fs::create_directory(temporary);
  fs::create_directory(ours);
  CliProcess process(
      "/usr/bin/env",
      Arguments{"TMPDIR=" + temporary.string(), "SLUICE_CACHE=" + (ours / "cache").string(),
                "/bin/sh", "-c", "umask 000; exec \"$@\"", "sh", testing::sluice_program()} +
          generate({"--policy", "gpu-only"}) +
          Arguments{"--device", "standin:64MiB", "--trace", ours / "trace"});
  std::map<std::string, unsigned> seen;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!fs::exists(ours / "trace" / "trace.jsonl") && std::chrono::steady_clock::now() < end)
    seen.merge(modes_in(temporary));
  const CliResult result = process.wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(seen.size(), 1U);  // the stand-in's, while StarPU starts
  for (const auto& [name, mode] : seen) EXPECT_EQ(mode, 0700U) << name;
  EXPECT_EQ(modes_in(ours), (std::map<std::string, unsigned>{{"cache", 0700}, {"trace", 0700}}));
}

/// Of what is not resident: all of it crosses for each iteration.
TEST_F(CliDeviceTest, TraceShowsItComputingWhileWeightsCross) {
  const std::string trace = folder.file("trace");
  const CliResult run =
      run_cli(generate({"--policy", "flexgen", "--device", "standin:10MiB", "--trace", trace}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const CliResult read = run_cli({"trace", trace, "--json"});
  ASSERT_EQ(read.exit_code, 0) << read.err;
  const json analysis = json::parse(read.out);
  const json& worker = analysis.at("workers").at(0);
  EXPECT_EQ(worker.at("name"), "stand-in");
  EXPECT_GT(worker.at("busy_ns").get<std::int64_t>(), 0);
  // For how long is a matter of the machine: mostly 0.2 to 0.4 of its work.
  EXPECT_GT(worker.at("overlap_ns").get<std::int64_t>(), 0) << read.out;
}

TEST_F(CliDeviceTest, BenchNamesIt) {
  const CliResult result = run_cli({"bench", "--model", "tiny", "--dtype", "f32", "--prompt-tokens",
                                    "16", "--gen-tokens", "4", "--repeat", "1", "--policy",
                                    "gpu-only", "--device", "standin:64MiB", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("stand-in accelerator"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("moved to it"), std::string::npos) << result.err;
}

/// A layer's weights on their way there, results of 100 rows on their way back: each more than the
/// sockets hold.
TEST(CliDeviceTransfersTest, BothDirectionsDoNotWaitForEachOther) {
  const CliResult result = CliProcess("/usr/bin/env", {"SLUICE_WATCHDOG_SECONDS=30",
                                                       testing::sluice_program(),
                                                       "bench",
                                                       "--model",
                                                       "opt-125m",
                                                       "--prompt-tokens",
                                                       "100",
                                                       "--gen-tokens",
                                                       "0",
                                                       "--repeat",
                                                       "1",
                                                       "--policy",
                                                       "lia",
                                                       "--policy-option",
                                                       "prefill=000000",
                                                       "--policy-option",
                                                       "decode=000000",
                                                       "--policy-option",
                                                       "opt1=off",
                                                       "--device",
                                                       "standin:300MiB"})
                               .wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace sluice
