// Weights on a disk or in CXL memory beside an accelerator: the stand-in, whose memory is its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bitset>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/engine/prompts_run.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
/// What of the embedded model in f32 can live elsewhere: six layers.
constexpr std::uint64_t layers_bytes = std::uint64_t{6} * 4 * 256 * (384 + 256 + 3 * 384);
/// That and an LM head of 2048 tokens.
constexpr std::uint64_t packed_bytes = layers_bytes + std::uint64_t{4} * 256 * 2048;

class CliDeviceTiersTest : public testing::PromptsRunTest {
 protected:
  CliDeviceTiersTest()
      : PromptsRunTest({.texts = {"Once upon a time", "The dog", "Lily and Tom"},
                        .batch = 2,
                        .max_tokens = 6}) {}
  Arguments on_device(int memory_mib, const Arguments& more) const {
    return generate(Arguments{"--device", fmt::format("standin:{}MiB", memory_mib)} + more);
  }
  Arguments from_disk(int ddr_mib) const {
    return {"--disk", folder.file("disk"), "--ddr", fmt::format("{}MiB", ddr_mib)};
  }
  std::uint64_t moved(const char* from, const char* to, const char* when) const {
    const json all = stats();
    for (const json& pair : all.at("moved")) {
      if (pair.at("from") == from && pair.at("to") == to) return pair.at(when);
    }
    return 0;
  }

  const std::string expected = run_cli(generate({"--policy", "cpu-only"})).out;
};

Arguments placed(const std::string& prefill, const std::string& decode) {
  return {"--policy",        "lia",
          "--policy-option", "prefill=" + prefill,
          "--policy-option", "decode=" + decode,
          "--policy-option", "opt1=off"};
}

/// Each vector in one of the phases.
TEST_F(CliDeviceTiersTest, EveryPlacementStreamsFromADiskWithTheSameTokensWithinTheBudgets) {
  for (unsigned number = 0; number < 32; ++number) {
    const Arguments policy =
        placed(std::bitset<6>(number).to_string(), std::bitset<6>(63 - number).to_string());
    SCOPED_TRACE(policy[3] + " " + policy[5]);
    const CliResult result = run_cli(on_device(8, policy + from_disk(12)));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.out, expected);
    const json disk = stats().at("disk");
    EXPECT_GT(disk.at("read_bytes").get<std::uint64_t>(),
              disk.at("weight_bytes").get<std::uint64_t>())
        << "nothing streamed";
    EXPECT_LE(moved("disk", "ddr", "bytes"), stats().at("iterations").get<std::uint64_t>() *
                                                 disk.at("weight_bytes").get<std::uint64_t>())
        << "some weight was read twice in an iteration";
    EXPECT_LE(disk.at("peak_staged_bytes").get<std::uint64_t>(),
              disk.at("staging_limit_bytes").get<std::uint64_t>());
    EXPECT_LE(disk.at("staging_limit_bytes").get<std::uint64_t>() + packed_bytes -
                  disk.at("weight_bytes").get<std::uint64_t>(),
              12 * mebibyte);
    EXPECT_LE(stats().at("peak_bytes").at("hbm").get<std::uint64_t>(), 8 * mebibyte);
  }
}

TEST_F(CliDeviceTiersTest, EveryBudgetIsRefusedOrGivesTheSameTokensWithinIt) {
  std::set<std::string> hints;
  int num_streamed = 0;
  for (int mib = 5; mib <= 16; ++mib) {
    const CliResult result = run_cli(on_device(8, placed("000000", "011000") + from_disk(mib)));
    if (result.exit_code != 0) {
      expect_failure(result, 1, {"not enough memory", "--ddr"});
      EXPECT_EQ(num_streamed, 0) << "refused, though less was enough";
      hints.insert(result.err.substr(result.err.find("--ddr")));
      continue;
    }
    EXPECT_EQ(result.out, expected) << mib << " MiB";
    if (!stats().contains("disk")) continue;
    const json disk = stats().at("disk");
    EXPECT_LE(disk.at("peak_staged_bytes").get<std::uint64_t>(),
              disk.at("staging_limit_bytes").get<std::uint64_t>())
        << mib << " MiB";
    if (num_streamed++ == 0 && !hints.empty()) {
      EXPECT_NE(hints.rbegin()->find(fmt::format("{}MiB", mib)), std::string::npos)
          << "the refusals name another budget: " << *hints.rbegin();
    }
  }
  EXPECT_GE(num_streamed, 3);
  EXPECT_FALSE(hints.empty());
}

TEST_F(CliDeviceTiersTest, WhatTheDeviceHoldsIsReadOnceAndTakesNoDdr) {
  const CliResult result = run_cli(on_device(32, Arguments{"--policy", "gpu-only"} + from_disk(8)));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected);
  const json disk = stats().at("disk");
  EXPECT_EQ(disk.at("weight_bytes"), packed_bytes);
  EXPECT_EQ(disk.at("read_bytes"), packed_bytes);
  // The largest, the LM head, passes with little else: nothing of it stays.
  EXPECT_LT(disk.at("peak_staged_bytes").get<std::uint64_t>(), 3 * mebibyte);
  EXPECT_EQ(moved("disk", "ddr", "bytes"), 0U) << "read again while generating";
}

/// The head's memory passes while loading, and no window is kept when nothing streams.
TEST_F(CliDeviceTiersTest, NothingStreamsWhereAllThatIsNotHeldFitsInDdr) {
  const CliResult all = run_cli(on_device(10, Arguments{"--policy", "lia", "--dry-run", "--json"}));
  ASSERT_EQ(all.exit_code, 0) << all.err;
  const json need = json::parse(all.out).at("tiers").at(1);
  const std::uint64_t held = json::parse(all.out).at("tiers").at(0).at("weight_bytes");
  ASSERT_GT(held, 5 * mebibyte) << "the LM head and two layers";
  // What is not held, the LM head on its way and 2 MiB for StarPU's rounding.
  const std::uint64_t enough =
      need.at("total_bytes").get<std::uint64_t>() - held + (2 + 2) * mebibyte;
  const CliResult result = run_cli(on_device(
      10, Arguments{"--policy", "lia"} + from_disk(static_cast<int>(enough / mebibyte + 1))));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected);
  EXPECT_GT(stats().at("disk").at("weight_bytes").get<std::uint64_t>(), 5 * mebibyte);
  EXPECT_EQ(moved("disk", "ddr", "bytes"), 0U);
}

/// Scores of a long prompt, which a placement that splits attention stores: 2 of 3 MiB.
TEST_F(CliDeviceTiersTest, ScoresBetweenTheDevicesCount) {
  std::ofstream(prompts_path) << json{{"prompt_token_ids", std::vector<int>(250, 7)}}.dump();
  const auto least = [&](const char* prefill) {
    const CliResult refused = run_cli(on_device(32, placed(prefill, "111111") + from_disk(2)));
    EXPECT_EQ(refused.exit_code, 1);
    return std::stoi(refused.err.substr(refused.err.find("--ddr ") + 6));
  };
  const int whole = least("000000");
  const int split = least("010000");
  EXPECT_GE(split, whole + 1);
  const CliResult result = run_cli(on_device(32, placed("010000", "111111") + from_disk(split)));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, run_cli(generate({"--policy", "cpu-only"})).out);
}

TEST_F(CliDeviceTiersTest, OtherPoliciesStreamFromADiskToo) {
  for (const char* policy : {"flexgen", "helm", "neo", "all-cpu"}) {
    const CliResult result = run_cli(on_device(14, Arguments{"--policy", policy} + from_disk(13)));
    ASSERT_EQ(result.exit_code, 0) << policy << result.err;
    EXPECT_EQ(result.out, expected) << policy;
    EXPECT_GT(stats().at("disk").at("read_bytes").get<std::uint64_t>(), 0U) << policy;
  }
}

TEST_F(CliDeviceTiersTest, WeightsGoFromCxlMemoryToTheDeviceAndNothingElseDoes) {
  const Arguments cxl = {"--cxl-nodes", "emulate:1"};
  const CliResult resident = run_cli(on_device(32, Arguments{"--policy", "gpu-only"} + cxl));
  ASSERT_EQ(resident.exit_code, 0) << resident.err;
  EXPECT_EQ(resident.out, expected);
  EXPECT_EQ(stats().at("cxl").at("weight_bytes"), layers_bytes);
  EXPECT_EQ(moved("cxl", "hbm", "load_bytes"), layers_bytes);
  EXPECT_EQ(moved("cxl", "hbm", "bytes"), 0U);
  EXPECT_EQ(stats().at("cxl").at("read_bytes"), 0U) << "the CPU has read";

  // Sublayers 5 and 6 on the device.
  const CliResult streamed = run_cli(on_device(8, placed("111100", "111100") + cxl));
  ASSERT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_EQ(streamed.out, expected);
  constexpr std::uint64_t ffn_bytes = layers_bytes * 3 * 384 / (384 + 256 + 3 * 384);
  const auto iterations = stats().at("iterations").get<std::uint64_t>();
  EXPECT_LE(moved("cxl", "hbm", "bytes"), iterations * ffn_bytes);
  EXPECT_GT(moved("cxl", "hbm", "bytes"), iterations * ffn_bytes / 2) << "some may still be there";
  EXPECT_GT(stats().at("cxl").at("read_bytes").get<std::uint64_t>(), 0U);
}

/// One layer in CXL memory, five on the disk; sublayers 5 and 6 on the device.
TEST_F(CliDeviceTiersTest, WeightsComeFromCxlMemoryAndFromADiskInOneRun) {
  const CliResult result = run_cli(on_device(
      8, placed("111100", "111100") + from_disk(11) + Arguments{"--cxl-nodes", "emulate:2MiB"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected);
  const auto iterations = stats().at("iterations").get<std::uint64_t>();
  constexpr std::uint64_t layer_bytes = layers_bytes / 6;
  constexpr std::uint64_t ffn_bytes = layer_bytes * 3 * 384 / (384 + 256 + 3 * 384);
  EXPECT_EQ(stats().at("cxl").at("weight_bytes"), layer_bytes);
  EXPECT_GE(stats().at("disk").at("weight_bytes").get<std::uint64_t>(), 5 * layer_bytes);
  // What the device reads may still be there from the iteration before.
  EXPECT_GT(moved("disk", "ddr", "bytes"), iterations * 5 * (layer_bytes - ffn_bytes));
  EXPECT_LE(moved("disk", "ddr", "bytes"), iterations * 5 * layer_bytes);
  EXPECT_LE(moved("cxl", "hbm", "bytes"), iterations * ffn_bytes);
  EXPECT_GT(moved("cxl", "hbm", "bytes"), 0U);
  EXPECT_GT(moved("ddr", "hbm", "bytes"), iterations * ffn_bytes);
  EXPECT_EQ(stats().at("cxl").at("read_bytes"), iterations * (layer_bytes - ffn_bytes));
}

/// Attention on the device reads the KV of each layer from where it lives.
TEST_F(CliDeviceTiersTest, KvGoesToTheDeviceFromCxlMemory) {
  struct Moved {
    std::uint64_t cxl, ddr;
  };
  const auto run = [&](const char* tier) {
    const CliResult result = run_cli(on_device(
        16, placed("111111", "000111") + Arguments{"--cxl-nodes", "emulate:1", "--kv-tier", tier}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected);
    return Moved{moved("cxl", "hbm", "bytes"), moved("ddr", "hbm", "bytes")};
  };
  const Moved in_ddr = run("ddr");
  const Moved in_cxl = run("cxl");
  EXPECT_GT(in_cxl.cxl, in_ddr.cxl);
  EXPECT_EQ(in_cxl.cxl - in_ddr.cxl, in_ddr.ddr - in_cxl.ddr);
}

/// From the disk it passes through main memory, and new KV comes back from the device to be
/// written.
TEST_F(CliDeviceTiersTest, KvGoesToTheDeviceFromADisk) {
  for (const char* decode : {"000111", "011000", "000000", "110001"}) {
    const Arguments where = placed("111111", decode) + Arguments{"--kv-tier"};
    const CliResult in_ddr = run_cli(on_device(16, where + Arguments{"ddr"}));
    ASSERT_EQ(in_ddr.exit_code, 0) << in_ddr.err;
    const std::uint64_t to_device = moved("ddr", "hbm", "bytes");
    const CliResult result =
        run_cli(on_device(16, where + Arguments{"disk", "--disk", folder.file("disk")}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected) << decode;
    const auto iterations = stats().at("iterations").get<std::uint64_t>();
    EXPECT_GE(moved("disk", "ddr", "bytes"),
              (iterations - 1) * stats().at("disk").at("kv_bytes").get<std::uint64_t>())
        << decode;
    EXPECT_GT(moved("ddr", "disk", "bytes"), 0U) << decode;
    // Attention on the device gets the same slabs; elsewhere new KV takes another way.
    if (std::string(decode) == "000111") {
      EXPECT_EQ(moved("ddr", "hbm", "bytes"), to_device);
    }
  }
}

/// NEO's requests all have a place in HBM here, whatever its plan says of layers.
TEST_F(CliDeviceTiersTest, KvThatIsInHbmTakesNoDisk) {
  const Arguments on_disk = {"--disk", folder.file("disk"), "--kv-tier", "disk"};
  for (const char* policy : {"neo", "gpu-only"}) {
    const CliResult result = run_cli(on_device(110, on_disk + Arguments{"--policy", policy}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected) << policy;
    EXPECT_FALSE(stats().contains("disk")) << policy;
  }
}

TEST_F(CliDeviceTiersTest, KvOnADiskGoesWithCxlMemory) {
  const CliResult result = run_cli(on_device(
      16, placed("111111", "000111") + Arguments{"--disk", folder.file("disk"), "--kv-tier", "disk",
                                                 "--cxl-nodes", "emulate:64MiB"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected);
  EXPECT_GT(moved("cxl", "hbm", "bytes"), 0U);
  EXPECT_GT(moved("ddr", "disk", "bytes"), 0U);
}

TEST_F(CliDeviceTiersTest, ADryRunNamesEveryTier) {
  const auto tiers = [&](const Arguments& more) {
    const CliResult result =
        run_cli(on_device(32, more + Arguments{"--policy", "gpu-only", "--dry-run", "--json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::string names;
    const json use = json::parse(result.out);
    for (const json& tier : use.at("tiers")) names += tier.at("tier").get<std::string>() + " ";
    return names;
  };
  EXPECT_EQ(tiers({"--cxl-nodes", "emulate:1"}), "hbm ddr cxl ");
  EXPECT_EQ(tiers(from_disk(8)), "hbm ddr disk ");
  EXPECT_EQ(tiers(from_disk(8) + Arguments{"--cxl-nodes", "emulate:2MiB"}), "hbm ddr cxl disk ");
}

TEST_F(CliDeviceTiersTest, ABenchmarkReadsFromADiskBesideTheDevice) {
  const CliResult result =
      run_cli({"bench",    "--model",        "opt-125m", "--dtype",  "f32",    "--prompt-tokens",
               "0",        "--gen-tokens",   "2",        "--repeat", "1",      "--no-warmup",
               "--device", "standin:300MiB", "--policy", "lia",      "--disk", folder.file("disk"),
               "--ddr",    "900MiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("of weights, "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("moved to it"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace sluice
