// Copies between host memory and a GPU, measured and counted; with an emulated GPU, or with the
// real one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::CliResult;
using testing::content_of;
using testing::run_cli;

class MemoryGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const CliResult result = run_cli({"info", "--memory", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    info = json::parse(result.out);
    if (info.at("cuda").at("devices").empty()) GTEST_SKIP() << "no GPU: the program sees none";
  }
  json info;
};

TEST_F(MemoryGpuTest, PinnedMemoryOfEachNodeIsCopiedBothWays) {
  std::size_t num_hbm = 0;
  for (const json& node : info.at("memory_nodes")) {
    if (node.at("tier") == "hbm") {
      ++num_hbm;
      EXPECT_FALSE(node.contains("probe"));
      continue;
    }
    const json& probe = node.at("probe");
    if (probe.at("bytes") == 0) continue;  // the node is full, or not ours
    EXPECT_GT(probe.at("to_gpu_bytes_per_s").get<double>(), 1e7) << probe;
    EXPECT_GT(probe.at("from_gpu_bytes_per_s").get<double>(), 1e7) << probe;
    // The copies come back to the block, which is still where it was.
    EXPECT_GT(probe.at("read_bytes_per_s").get<double>(), 1e8);
  }
  EXPECT_EQ(num_hbm, info.at("cuda").at("devices").size());
  const CliResult words = run_cli({"info", "--memory"});
  EXPECT_NE(words.out.find("pinned memory of  to the GPU"), std::string::npos) << words.out;
  EXPECT_EQ(words.out.find("there is none"), std::string::npos) << words.out;
}

TEST_F(MemoryGpuTest, TransfersStandBesideAPlainCopysRate) {
  const TemporaryFolder folder;
  const std::string stats_path = folder.file("stats.json");
  const CliResult result = run_cli({"generate", "--prompt", "Once upon a time", "--dtype", "f32",
                                    "--temperature", "0", "--max-tokens", "3", "--device", "cuda",
                                    "--policy", "gpu-only", "--stats", stats_path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json stats = json::parse(content_of(stats_path));
  std::uint64_t to_gpu = 0;
  for (const json& entry : stats.at("moved")) {
    EXPECT_GT(entry.at("copy_bytes_per_s").get<double>(), 0) << entry;
    if (entry.at("to") == "hbm")
      to_gpu +=
          entry.at("load_bytes").get<std::uint64_t>() + entry.at("bytes").get<std::uint64_t>();
  }
  EXPECT_EQ(to_gpu, stats.at("device").at("bytes_to_device"));
  // Layers and head of the embedded model in f32.
  EXPECT_GT(to_gpu, std::uint64_t{4} * 256 * (6 * (384 + 256 + 3 * 384) + 2048));
  EXPECT_NE(result.err.find("a plain copy: "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace sluice
