// `sluice quantize`, and what other commands do with quantised weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::run_cli;

constexpr int usage_error = 2;

CliResult run_well(const Arguments& arguments) {
  CliResult result = run_cli(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

Arguments generate(const std::string& model, const std::string& dtype) {
  return {"generate", "--model",          model,          "--dtype", dtype,
          "--prompt", "Once upon a time", "--max-tokens", "24"};
}

class CliQuantizeTest : public ::testing::Test {
 protected:
  std::string quantized(const std::string& format, const Arguments& more = {}) {
    std::string out = folder_.file("to-" + format);
    Arguments arguments = {"quantize", "--model", "tiny", "--out", out, "--weights", format};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CliResult result = run_well(arguments);
    printed_ = result.out;
    return out;
  }

  test::TemporaryFolder folder_;
  std::string printed_;
};

TEST_F(CliQuantizeTest, WritesAFolderThatRuns) {
  const std::string plain = run_well(generate("tiny", "f32")).out;
  const std::string model = quantized("int8-g32", {"--head-weights", "int8-g32", "--json"});
  const json report = json::parse(printed_);
  // 8 bits, and 16 for each 32 of them.
  EXPECT_DOUBLE_EQ(report.at("bits_per_weight").get<double>(), 8.5);
  EXPECT_EQ(report.at("weights").size(), 8U);
  for (const json& weight : report.at("weights")) {
    EXPECT_EQ(weight.at("format"), "int8-g32");
    // Rounding to 1/127 of a group's largest value; a random error of a uniform 1/254 at most.
    EXPECT_GT(weight.at("relative_error").get<double>(), 0.001);
    EXPECT_LT(weight.at("relative_error").get<double>(), 0.01);
  }
  EXPECT_EQ(run_well(generate(model, "f32")).out, plain);
  EXPECT_EQ(run_well(generate(model, "bf16")).out, plain);
}

TEST_F(CliQuantizeTest, LeavesWhatIsToBeKept) {
  const std::string model = quantized("int4-g32", {"--keep", "fc2_weight,q_weight", "--json"});
  std::vector<std::string> roles;
  const json report = json::parse(printed_);
  for (const json& weight : report.at("weights"))
    roles.push_back(weight.at("role").get<std::string>());
  EXPECT_EQ(std::count(roles.begin(), roles.end(), "fc2_weight"), 0);
  EXPECT_EQ(std::count(roles.begin(), roles.end(), "k_weight"), 1);
  // Query, key and value become one weight.
  expect_failure(run_cli(generate(model, "f32")), 1, {"q_weight", "k_weight"});
}

TEST_F(CliQuantizeTest, BadRequestsAreOneLine) {
  const std::string model = quantized("int4-g64");
  const std::string new_folder = folder_.file("new");
  const auto quantize = [&](const Arguments& more) {
    Arguments arguments = {"quantize"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_cli(arguments);
  };
  expect_failure(quantize({"--model", "tiny", "--out", new_folder}), usage_error, {"--weights"});
  expect_failure(quantize({"--model", "tiny", "--out", new_folder, "--weights", "int4-g48"}),
                 usage_error, {"--weights", "int4-g48", "32, 64 or 128"});
  expect_failure(quantize({"--model", "tiny", "--out", new_folder, "--weights", "int3-g32"}),
                 usage_error, {"--weights", "int3-g32"});
  // Before any weight is read, so that none is named.
  const CliResult mxfp4 = quantize({"--model", "tiny", "--out", new_folder, "--weights", "mxfp4"});
  expect_failure(mxfp4, 1, {"not quantised to mxfp4", "int4-gN"});
  EXPECT_EQ(mxfp4.err.find("q_proj"), std::string::npos) << mxfp4.err;
  expect_failure(
      quantize({"--model", "tiny", "--out", new_folder, "--weights", "int4-g32", "--keep", "fc3"}),
      usage_error, {"--keep", "fc3", "fc2_weight"});
  expect_failure(quantize({"--model", "tiny", "--out", new_folder, "--weights", "int4-g32",
                           "--search", "best"}),
                 usage_error, {"--search", "best", "mse"});
  expect_failure(quantize({"--model", model, "--out", new_folder, "--weights", "int8-g32"}), 1,
                 {"quantised"});
  expect_failure(quantize({"--model", model, "--out", model, "--weights", "int8-g32"}), 1, {model});
  expect_failure(quantize({"--model", "tiny", "--out", model, "--weights", "int8-g32"}), 1,
                 {model});
  EXPECT_FALSE(fs::exists(new_folder));
  const CliResult bench =
      run_cli({"bench", "--model", model, "--weights", "int8-g32", "--gen-tokens", "1"});
  expect_failure(bench, usage_error, {"--weights", "quantize"});
  const CliResult plan =
      run_cli({"plan", "--model", "opt-125m", "--weights", "int4-g32", "--weight-bits", "4.5"});
  expect_failure(plan, usage_error, {"--weights", "--weight-bits"});
}

TEST_F(CliQuantizeTest, BenchCountsWhatATokenReads) {
  const CliResult result =
      run_well({"bench", "--model", "opt-125m", "--weights", "int4-g32", "--prompt-tokens", "0",
                "--gen-tokens", "1", "--repeat", "1", "--no-warmup", "--json"});
  const json tests = json::parse(result.out);
  const json& test = tests.is_array() ? tests.front() : tests;
  EXPECT_EQ(test.at("weights"), "int4-g32");
  EXPECT_EQ(test.at("head_weights"), "bf16");
  // 12 layers of 12 x 768^2 in 4.5 bits, a head of 50272 x 768 in 16.
  const double layers = 12.0 * 12 * 768 * 768;
  const double head = 50272.0 * 768;
  EXPECT_NEAR(test.at("weight_bits").get<double>(), (4.5 * layers + 16 * head) / (layers + head),
              1e-9);
}

TEST_F(CliQuantizeTest, PlansCountCodes) {
  const auto decode_s = [](const Arguments& more) {
    Arguments arguments = {"plan",     "--model",  "llama-3.1-8b", "--machine",       "spr-a100",
                           "--policy", "cpu-only", "--json",       "--output-tokens", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const json plan = json::parse(run_well(arguments).out);
    return (plan.is_array() ? plan.front() : plan).at("decode").at("iteration_s").get<double>();
  };
  const double plain = decode_s({});
  const double narrow = decode_s({"--weights", "int4-g32", "--head-weights", "int4-g32"});
  // Bound by memory: nearly 16 / 4.5.
  EXPECT_GT(plain / narrow, 2.8);
  EXPECT_LT(plain / narrow, 16 / 4.5);
}

TEST_F(CliQuantizeTest, MakeModelWritesShapes) {
  const std::string model = folder_.file("shape");
  run_well({"make-model", "--shape", "opt-125m", "--out", model, "--weights", "int4-g128z"});
  std::ifstream file(fs::path(model) / "config.json");
  const json config = json::parse(file);
  EXPECT_EQ(config.at("quantization_config").at("quant_method"), "compressed-tensors");
}

}  // namespace
}  // namespace sluice
