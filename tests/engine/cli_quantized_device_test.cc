// Quantised weights on the stand-in accelerator: the CPU's tokens in f32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/cli_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::Arguments;
using testing::CliResult;
using testing::run_cli;

/// One model for all tests.
const std::string& quantized_model() {
  static const test::TemporaryFolder folder;
  static const std::string model = [] {
    std::string out = folder.file("int4");
    const CliResult made = run_cli({"quantize", "--model", "tiny", "--out", out, "--weights",
                                    "int4-g32", "--head-weights", "int8-g32"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return out;
  }();
  return model;
}

std::string output_of(const Arguments& more) {
  Arguments arguments = {"generate", "--model",          quantized_model(), "--dtype", "f32",
                         "--prompt", "Once upon a time", "--max-tokens",    "12"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CliResult result = run_cli(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

/// Of the 64, which tests/graphs/placement_test.cc has all, those that cut a layer differently.
class QuantizedPlacementTest : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizedPlacementTest, GivesTheTokensOfTheCpu) {
  const std::string placement = GetParam();
  EXPECT_EQ(output_of({"--device", "standin:4MiB", "--policy", "lia", "--policy-option", "opt1=off",
                       "--policy-option", "prefill=" + placement, "--policy-option",
                       "decode=" + placement}),
            output_of({}));
}

INSTANTIATE_TEST_SUITE_P(Cuts, QuantizedPlacementTest,
                         ::testing::Values("000000", "011000", "010101", "101010", "110011",
                                           "001100", "100001", "111111"));

/// Weights in CXL memory and KV in each tier, with attention on the stand-in.
TEST(QuantizedTiersTest, HomesOfKvGiveTheTokensOfTheCpu) {
  const std::string expected = output_of({});
  const test::TemporaryFolder folder;
  for (const char* tier : {"ddr", "cxl", "disk"}) {
    EXPECT_EQ(
        output_of({"--device", "standin:16MiB", "--policy", "lia", "--policy-option", "opt1=off",
                   "--policy-option", "prefill=111111", "--policy-option", "decode=000111",
                   "--cxl-nodes", "emulate:2MiB", "--disk", folder.file(tier), "--kv-tier", tier}),
        expected)
        << tier;
  }
}

TEST(QuantizedTiersTest, DiskAndPoliciesGiveTheTokensOfTheCpu) {
  const std::string expected = output_of({});
  const test::TemporaryFolder folder;
  // The first run packs into the file, the second one reads it.
  for (int run = 0; run < 2; ++run)
    EXPECT_EQ(output_of({"--disk", folder.file("disk"), "--ddr", "28MiB"}), expected);
  EXPECT_EQ(output_of({"--cxl-nodes", "emulate:1"}), expected);
  for (const char* policy : {"gpu-only", "helm", "flexgen", "all-cpu", "neo"})
    EXPECT_EQ(output_of({"--device", "standin:16MiB", "--policy", policy}), expected) << policy;
}

}  // namespace
}  // namespace sluice
