// Memory asked for against memory found, and what moves between tiers, as the program tells it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/engine/refused_call.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::run_cli;
using Arguments = std::vector<std::string>;

/// Of the embedded model in f32: a layer's sublayers 1, 4, 5 and 6 (384 = 256 + 2 * 64 columns of
/// query, key and value; FFN of 3 * 384 columns, gate included), and its LM head of 2048 tokens.
constexpr std::uint64_t layer_bytes = std::uint64_t{4} * 256 * (384 + 256 + 3 * 384);
constexpr std::uint64_t num_layers = 6;
constexpr std::uint64_t head_bytes = std::uint64_t{4} * 256 * 2048;
constexpr std::uint64_t page_bytes = 4096;

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

json info(const Arguments& more) {
  const CliResult result = run_cli(Arguments{"info", "--json"} + more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(CliInfoMemoryTest, AddsAProbeToEachNodeOfTheHost) {
  const json plain = info({});
  json probed = info({"--memory"});
  ASSERT_EQ(probed.at("memory_nodes").size(), plain.at("memory_nodes").size());
  std::size_t num_probed = 0;
  for (std::size_t i = 0; i < plain.at("memory_nodes").size(); ++i) {
    json& node = probed["memory_nodes"][i];
    EXPECT_FALSE(plain.at("memory_nodes")[i].contains("probe"));
    if (node.at("tier") == "hbm") continue;
    ++num_probed;
    const json probe = node.at("probe");
    node.erase("probe");
    EXPECT_EQ(node, plain.at("memory_nodes")[i]);  // what was there before stays as it was
    if (!probe.at("problems").empty())
      GTEST_SKIP() << probe.at("problems")[0].get<std::string>();  // a container may forbid it
    const auto bytes = probe.at("bytes").get<std::uint64_t>();
    EXPECT_GT(bytes, 0U);
    EXPECT_EQ(
        probe.at("pages_asked").get<std::uint64_t>() * probe.at("page_bytes").get<std::uint64_t>(),
        bytes);
    EXPECT_EQ(probe.at("pages_found"), probe.at("pages_asked"));
    EXPECT_EQ(probe.at("threads"), plain.at("cpu").at("threads"));
    EXPECT_GT(probe.at("read_bytes_per_s").get<double>(), 1e8);
    EXPECT_EQ(probe.at("copies").is_array(), true);
    EXPECT_EQ(probe.at("to_gpu_bytes_per_s").is_null(), plain.at("cuda").at("devices").empty());
    EXPECT_EQ(probe.at("from_gpu_bytes_per_s").is_null(), plain.at("cuda").at("devices").empty());
  }
  EXPECT_GE(num_probed, 1U);
}

TEST(CliInfoMemoryTest, SaysInWordsWhatThereIsAndWhatThereIsNot) {
  const json plain = info({});
  const CliResult result = run_cli({"info", "--memory"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"memory node ", "pages asked", "found there", "GB/s"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  const bool has_gpu = !plain.at("cuda").at("devices").empty();
  EXPECT_EQ(result.out.find("copies to and from a GPU: there is none") == std::string::npos,
            has_gpu)
      << result.out;
  EXPECT_EQ(run_cli({"info"}).out.find("pages asked"), std::string::npos);
}

TEST(CliInfoMemoryTest, WrongOptionsAreUsageErrors) {
  expect_failure(run_cli({"info", "--memry"}), 2, {"--memry", "--memory"});
  expect_failure(run_cli({"info", "--memory=256MiB"}), 2, {"--memory"});
  expect_failure(run_cli({"info", "--memory", "0"}), 2, {"0"});
}

/// By a program that may not ask where memory lies.
std::optional<CliResult> run_without_asking(const Arguments& arguments) {
  std::optional<CliResult> result;
  std::thread([&] {
    if (testing::refuse_call(SYS_move_pages)) result = run_cli(arguments);
  }).join();
  return result;
}

TEST(CliInfoMemoryTest, WithoutPermissionToAskItSaysSoAndMeasures) {
  const auto result = run_without_asking({"info", "--memory"});
  if (!result) GTEST_SKIP() << "no system call can be refused here";
  EXPECT_EQ(result->exit_code, 0) << result->err;
  for (const char* part :
       {"unknown", "GB/s", "does not say where memory lies: Operation not permitted"})
    EXPECT_NE(result->out.find(part), std::string::npos) << part << " is not in:\n" << result->out;
}

class CliMovedTest : public ::testing::Test {
 protected:
  /// A run of so many tokens; what it wrote to stderr is in `said`.
  json generate(int num_tokens, const Arguments& more) {
    const CliResult result =
        run_cli(Arguments{"generate", "--prompt", "Once upon a time", "--dtype", "f32",
                          "--temperature", "0", "--ignore-eos", "--max-tokens",
                          std::to_string(num_tokens), "--stats", stats_path} +
                more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    said = result.err;
    return json::parse(content_of(stats_path));
  }

  /// Of `moved`; nothing where the pair is not in it. It must not be there twice.
  static std::optional<json> move(const json& stats, const std::string& from,
                                  const std::string& to) {
    std::optional<json> found;
    for (const json& entry : stats.at("moved")) {
      if (entry.at("from") != from || entry.at("to") != to) continue;
      EXPECT_FALSE(found.has_value()) << stats.at("moved");
      found = entry;
    }
    return found;
  }
  static std::uint64_t bytes(const std::optional<json>& entry, const char* which = "bytes") {
    return entry ? entry->at(which).get<std::uint64_t>() : 0;
  }
  static void expect_rate(const json& stats, const std::optional<json>& entry) {
    ASSERT_TRUE(entry.has_value());
    EXPECT_NEAR(entry->at("bytes_per_s").get<double>() * stats.at("wall_s").get<double>(),
                entry->at("bytes").get<double>(), 1 + 1e-9 * entry->at("bytes").get<double>());
  }
  void expect_said(const std::string& part) const {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in:\n" << said;
  }

  TemporaryFolder folder;
  std::string disk = (folder.path() / "disk").string();
  std::string stats_path = folder.file("stats.json");
  std::string said;
};

TEST_F(CliMovedTest, ARunInDdrMovesNothingAndSaysSo) {
  const json stats = generate(4, {"--device", "cpu"});
  EXPECT_EQ(stats.at("moved"), json::array());
  expect_said("nothing between tiers");
}

TEST_F(CliMovedTest, PagesOfWeightsAreFoundWhereTheyWereAskedFor) {
  const json placements = generate(2, {"--device", "cpu"}).at("placement");
  ASSERT_EQ(placements.size(), 1U);
  const json placement = placements.at(0);
  EXPECT_EQ(placement.at("tier"), "ddr");
  EXPECT_EQ(placement.at("weight_bytes"), num_layers * layer_bytes);
  EXPECT_FALSE(placement.at("numa_nodes").empty());
  if (placement.at("pages_asked").is_null()) {
    expect_said("the system does not say");
    GTEST_SKIP() << "the system does not say where memory lies";
  }
  EXPECT_EQ(placement.at("pages_asked"), num_layers * layer_bytes / page_bytes);
  EXPECT_EQ(placement.at("pages_found"), placement.at("pages_asked"));
  EXPECT_EQ(placement.at("one_page_in"), 1);
  expect_said("2688 of 2688 pages lie there");  // 6 * 1835008 / 4096
}

TEST_F(CliMovedTest, WithoutPermissionToAskARunSaysSo) {
  const auto result = run_without_asking(
      {"generate", "--prompt", "A", "--max-tokens", "2", "--device", "cpu", "--stats", stats_path});
  if (!result) GTEST_SKIP() << "no system call can be refused here";
  EXPECT_EQ(result->exit_code, 0) << result->err;
  said = result->err;
  expect_said("of weights; the system does not say where memory lies: Operation not permitted");
  const json placement = json::parse(content_of(stats_path)).at("placement").at(0);
  EXPECT_TRUE(placement.at("pages_asked").is_null());
  EXPECT_TRUE(placement.at("pages_found").is_null());
}

TEST_F(CliMovedTest, WhatStaysOnTheAcceleratorMovesBeforeTheRun) {
  const json stats = generate(8, {"--device", "standin:32MiB", "--policy", "gpu-only"});
  const auto to = move(stats, "ddr", "hbm");
  EXPECT_GE(bytes(to, "load_bytes"), num_layers * layer_bytes + head_bytes);
  EXPECT_LT(bytes(to, "load_bytes"), num_layers * layer_bytes + 2 * head_bytes);
  EXPECT_LT(bytes(to), layer_bytes / 100);  // the tokens that are fed
  expect_said("before that: ddr -> hbm 13.");
}

TEST_F(CliMovedTest, WhatStreamsToTheAcceleratorIsCountedOnce) {
  const Arguments streaming = {
      "--device",        "standin:10MiB", "--policy",        "lia",
      "--policy-option", "decode=011000", "--policy-option", "prefill=000000",
      "--policy-option", "opt1=off"};
  const json stats = generate(20, streaming);
  const auto to = move(stats, "ddr", "hbm");
  const auto from = move(stats, "hbm", "ddr");
  expect_rate(stats, to);
  expect_rate(stats, from);
  // What does not fit crosses in each of 20 iterations; half of it may still be there. No weight
  // crosses twice in one, and a token's values, of 256 floats, are small.
  constexpr std::uint64_t weights = 20 * num_layers * layer_bytes;
  EXPECT_GT(bytes(to), weights / 2);
  EXPECT_LT(bytes(to), weights + weights / 10);
  EXPECT_GT(bytes(from), 0U);
  EXPECT_LT(bytes(from), layer_bytes);
  // StarPU's counts from the beginning on.
  EXPECT_EQ(bytes(to, "load_bytes") + bytes(to), stats.at("device").at("bytes_to_device"));
  EXPECT_EQ(bytes(from, "load_bytes") + bytes(from), stats.at("device").at("bytes_from_device"));
  EXPECT_EQ(stats.at("moved").size(), 2U) << stats.at("moved");
  expect_said("moved while generating (");
  expect_said("ddr -> hbm ");
  expect_said("hbm -> ddr ");
}

TEST_F(CliMovedTest, EachIterationReadsFromTheDiskWhatLivesThere) {
  const Arguments smallest = {"--device", "cpu", "--ddr", "9MiB", "--disk", disk};
  const json first = generate(6, smallest);
  const auto written = move(first, "ddr", "disk");
  EXPECT_EQ(bytes(written), 0U);
  const std::filesystem::path file = first.at("disk").at("file").get<std::string>();
  EXPECT_GE(bytes(written, "load_bytes"), num_layers * layer_bytes + head_bytes);
  EXPECT_LE(bytes(written, "load_bytes"), std::filesystem::file_size(file));
  const auto iterations = first.at("iterations").get<std::uint64_t>();
  EXPECT_GE(iterations, 6U);
  const auto read = move(first, "disk", "ddr");
  EXPECT_EQ(bytes(read), iterations * num_layers * layer_bytes);
  EXPECT_EQ(bytes(read, "load_bytes"), 0U);  // the head was packed here
  expect_rate(first, read);
  EXPECT_GT(read->at("busy_s").get<double>(), 0);
  EXPECT_LE(read->at("busy_s").get<double>(), 1.01 * first.at("wall_s").get<double>());
  expect_said("while moving)");

  // With the file there, a layer and the head stay in memory and come from it first.
  const json second = generate(6, {"--device", "cpu", "--ddr", "11MiB", "--disk", disk});
  EXPECT_FALSE(move(second, "ddr", "disk").has_value());
  const auto again = move(second, "disk", "ddr");
  const std::uint64_t away = second.at("disk").at("weight_bytes").get<std::uint64_t>();
  EXPECT_LT(away, num_layers * layer_bytes);
  EXPECT_EQ(bytes(again, "load_bytes"), num_layers * layer_bytes + head_bytes - away);
  EXPECT_EQ(bytes(again), second.at("iterations").get<std::uint64_t>() * away);
  EXPECT_EQ(second.at("placement").at(0).at("weight_bytes"), num_layers * layer_bytes - away);
}

TEST_F(CliMovedTest, WeightsInCxlMemoryAreReadInPlace) {
  for (const Arguments& form : {Arguments{}, Arguments{"--no-fuse"}}) {
    const json stats = generate(6, Arguments{"--device", "cpu", "--cxl-nodes", "emulate:1"} + form);
    EXPECT_EQ(stats.at("moved"), json::array());
    const json cxl = stats.at("cxl");
    EXPECT_EQ(cxl.at("weight_bytes"), num_layers * layer_bytes);
    const auto read = cxl.at("read_bytes").get<std::uint64_t>();
    EXPECT_EQ(read, stats.at("iterations").get<std::uint64_t>() * num_layers * layer_bytes);
    EXPECT_NEAR(cxl.at("read_bytes_per_s").get<double>() * stats.at("wall_s").get<double>(),
                static_cast<double>(read), 1.0);
    EXPECT_EQ(stats.at("placement").at(0).at("tier"), "ddr");  // emulated
    expect_said("read in place in cxl: ");
    expect_said("nothing between tiers");
  }
}

/// One layer there, one in DDR, four on the disk.
TEST_F(CliMovedTest, LayersInCxlMemoryInDdrAndOnADiskAreCountedEach) {
  const json stats = generate(
      6, {"--device", "cpu", "--cxl-nodes", "emulate:2MiB", "--ddr", "11MiB", "--disk", disk});
  const auto iterations = stats.at("iterations").get<std::uint64_t>();
  EXPECT_EQ(stats.at("cxl").at("weight_bytes"), layer_bytes);
  EXPECT_EQ(stats.at("cxl").at("read_bytes"), iterations * layer_bytes);
  EXPECT_EQ(stats.at("disk").at("weight_bytes"), 4 * layer_bytes);
  EXPECT_EQ(bytes(move(stats, "disk", "ddr")), iterations * 4 * layer_bytes);
  const json placement = stats.at("placement");
  ASSERT_EQ(placement.size(), 2U);
  EXPECT_EQ(placement.at(0).at("weight_bytes"), layer_bytes);
  EXPECT_EQ(placement.at(1).at("weight_bytes"), layer_bytes);
  expect_said("cxl: 1.8 MiB of weights, emulated");
  expect_said("read in place in cxl: ");
}

TEST_F(CliMovedTest, QuietRunsSayNothing) {
  generate(2, {"--device", "cpu", "-q"});
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace sluice
