// `sluice calibrate` and what uses its file, from outside: not how fast the machine is.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::lines_of;
using testing::operator+;
using test::TemporaryFolder;

/// The program with a data folder of its own.
Arguments with_data(const TemporaryFolder& data, const Arguments& arguments) {
  return Arguments{"XDG_DATA_HOME=" + data.path().string(), testing::sluice_program()} + arguments;
}

CliResult run_with(const TemporaryFolder& data, const Arguments& arguments) {
  return CliProcess("/usr/bin/env", with_data(data, arguments)).wait();
}

Arguments calibrate_tiny(const Arguments& more = {}) {
  return Arguments{"calibrate", "--model", "tiny", "--repeat", "1"} + more;
}

/// All files below a folder.
std::vector<std::string> files_in(const TemporaryFolder& data) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data.path())) {
    if (entry.is_regular_file() && entry.path().extension() == ".json")
      files.push_back(entry.path().string());
  }
  return files;
}

std::size_t num_points(const std::string& file) {
  return json::parse(content_of(file)).at("points").size();
}

/// Returns when the condition holds, or after five minutes.
void wait_until(const std::function<bool()>& condition) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition() && std::chrono::steady_clock::now() - start < std::chrono::minutes(5))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// One calibration of the embedded model for all of them.
class CalibratedTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    data = std::make_unique<TemporaryFolder>();
    const CliResult result = run_with(*data, calibrate_tiny());
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    out = result.out;
  }
  static void TearDownTestSuite() { data.reset(); }

  static inline std::unique_ptr<TemporaryFolder> data;
  static inline std::string out;
};

TEST_F(CalibratedTest, KeepsOneFileAndSaysWhere) {
  const std::vector<std::string> files = files_in(*data);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_NE(files[0].find("/sluice/calibration/"), std::string::npos) << files[0];
  EXPECT_NE(out.find(files[0]), std::string::npos) << out;
  const json file = json::parse(content_of(files[0]));
  EXPECT_EQ(file["format"], 1);
  EXPECT_EQ(file["model"]["hidden_size"], 256);
  EXPECT_GT(file["points"].size(), 20U);
  for (const json& point : file["points"]) EXPECT_GE(point["samples"].size(), 1U);
}

TEST_F(CalibratedTest, AnotherCallMeasuresNothing) {
  const std::string before = content_of(files_in(*data).at(0));
  const CliResult result = run_with(*data, calibrate_tiny());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("--force"), std::string::npos) << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_EQ(content_of(files_in(*data).at(0)), before);
}

TEST_F(CalibratedTest, JsonHasThePredictionsOfTheTable) {
  const json all = json::parse(run_with(*data, calibrate_tiny({"--json"})).out);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["file"], files_in(*data).at(0));
  EXPECT_GT(all[0]["read_bandwidth_bytes_per_s"].get<double>(), 1e8);
  const json& rows = all[0]["predicted"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3]["rows"], 512);
  EXPECT_GT(rows[3]["fc1_s"].get<double>(), rows[0]["fc1_s"].get<double>());
  const CliResult csv = run_with(*data, calibrate_tiny({"--csv"}));
  EXPECT_EQ(lines_of(csv.out).size(), 5U) << csv.out;
}

TEST_F(CalibratedTest, CheckComparesEverySublayer) {
  const CliResult result = run_with(*data, calibrate_tiny({"--check", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json objects = json::parse(result.out);
  for (const char* sublayer : {"qkv", "attention", "out_proj", "fc1", "fc2", "lm_head"}) {
    EXPECT_TRUE(std::any_of(objects.begin(), objects.end(), [&](const json& object) {
      return object["sublayer"] == sublayer && object["measured_s"] > 0 &&
             object["predicted_s"] > 0 && object["predicted_at_rates_s"] > 0 &&
             object["spread"].is_null();
    })) << sublayer;
  }
}

TEST_F(CalibratedTest, CheckSaysHowManyAreTrueAndWhatDoesNotRepeat) {
  const CliResult twice =
      run_with(*data, {"calibrate", "--model", "tiny", "--repeat", "2", "--check"});
  ASSERT_EQ(twice.exit_code, 0) << twice.err;
  EXPECT_NE(twice.out.find("its repetitions"), std::string::npos) << twice.out;
  EXPECT_NE(twice.out.find(" are within 10 % at the rates probed beside"), std::string::npos);
  const CliResult once = run_with(*data, calibrate_tiny({"--check"}));
  ASSERT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(once.out.find("repe"), std::string::npos) << once.out;
}

TEST_F(CalibratedTest, PlanTakesItForThisMachine) {
  const CliResult result =
      run_with(*data, {"plan", "--model", "tiny", "--machine", "this", "--policy", "cpu-only",
                       "--input-tokens", "64", "--output-tokens", "8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json plans = json::parse(result.out);
  EXPECT_EQ(plans[0]["machine"], "this");
  EXPECT_EQ(plans[0]["decode"]["placement"], "111111");
  EXPECT_GT(plans[0]["latency_s"], 0);
}

TEST_F(CalibratedTest, GenerateExplains) {
  const CliResult result =
      run_with(*data, {"generate", "--prompt", "Once upon a time", "--max-tokens", "8",
                       "--temperature", "0", "--explain"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"calibrated at", "prefill", "decode", "qkv", "attention", "out_proj",
                           "fc1", "fc2", "lm_head", "outside of kernels", "no GPU here: none",
                           "twice the DDR bandwidth", "twice the CPU's GEMM rate"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in " << result.err;
  }
  EXPECT_EQ(result.err.find("twice the link"), std::string::npos);
}

/// Decode leaves out all cores but one. Whoever has one core alone takes the plan of no group.
TEST_F(CalibratedTest, APlanHasACalibrationOfItsOwn) {
  const std::vector<std::string> before = files_in(*data);
  const CliResult info = run_with(*data, {"info", "--json"});
  json plan = json::parse(info.out)["cpu_plan"];
  json& decode = plan["decode"];
  const json cores = decode["groups"][0]["cores"];
  if (cores.size() < 2) GTEST_SKIP() << "one core, which no plan can leave out";
  decode["groups"][0]["cores"] = {cores[0]};
  for (std::size_t i = 1; i < cores.size(); ++i) decode["left_out"].push_back(cores[i]);
  const TemporaryFolder folder;
  const std::string path = folder.file("plan.json");
  std::ofstream(path) << plan;
  const auto source = [&](const Arguments& more) {
    const CliResult result = run_with(
        *data, Arguments{"generate", "--prompt", "Once", "--max-tokens", "2", "--explain"} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t at = result.err.find("calibrated at");
    EXPECT_NE(at, std::string::npos) << result.err;
    return result.err.substr(at, result.err.find_first_of(";\n", at) - at);  // before rates of now
  };
  const Arguments by_plan = {"--cpu-plan", path};
  EXPECT_NE(source(by_plan).find("without the CPU plan"), std::string::npos);
  EXPECT_EQ(source({}).find("without the CPU plan"), std::string::npos);
  EXPECT_EQ(source({"--cpu-plan", "interleaved"}), source({}));

  const CliResult made = run_with(*data, calibrate_tiny(by_plan + Arguments{"--json"}));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json said = json::parse(made.out)[0];
  EXPECT_EQ(said["cpu_plan"]["decode"]["groups"][0]["cores"], json::array({cores[0]}));
  const std::string file = said["file"];
  EXPECT_EQ(std::count(before.begin(), before.end(), file), 0) << file;
  EXPECT_EQ(files_in(*data).size(), before.size() + 1);
  EXPECT_EQ(source(by_plan).find("without the CPU plan"), std::string::npos);
  EXPECT_GT(std::filesystem::remove(file), 0U);
}

TEST_F(CalibratedTest, InfoCountsIt) {
  const CliResult result = run_with(*data, {"info"});
  EXPECT_NE(result.out.find("calibrated     1 model, "), std::string::npos) << result.out;
}

TEST_F(CalibratedTest, IsNotBelievedOfOlderKernels) {
  const TemporaryFolder older;
  std::filesystem::copy(data->path(), older.path(), std::filesystem::copy_options::recursive);
  const std::filesystem::path folder = std::filesystem::path(files_in(older).at(0)).parent_path();
  const std::string name = folder.filename().string();
  const std::size_t digits = name.rfind("-kernels-");
  ASSERT_NE(digits, std::string::npos) << name;
  std::filesystem::rename(folder, folder.parent_path() / (name.substr(0, digits) + "-kernels-1"));
  const CliResult result = run_with(older, {"info"});
  EXPECT_NE(result.out.find("calibrated     no model"), std::string::npos) << result.out;
  const CliResult plan =
      run_with(older, {"plan", "--model", "tiny", "--machine", "this", "--policy", "cpu-only",
                       "--input-tokens", "64", "--output-tokens", "8"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.err.find("tiny is not calibrated here"), std::string::npos) << plan.err;
}

Arguments point_of(const char* command) {
  return {command,    "--model",        "opt-1.3b", "--machine",       "this", "--policy",
          "cpu-only", "--input-tokens", "64",       "--output-tokens", "8",    "--json"};
}

TEST_F(CalibratedTest, AnotherModelsRatesStandInAndThatIsSaid) {
  // From caches, as the embedded model: says nothing of a model that reads its weights from memory.
  const CliResult without = run_with(*data, point_of("plan"));
  EXPECT_NE(without.err.find("quick probes"), std::string::npos) << without.err;
  // The same layers, so many that no cache holds them.
  json file = json::parse(content_of(files_in(*data).at(0)));
  file["model"]["num_layers"] = 6000;
  const std::filesystem::path folder = std::filesystem::path(files_in(*data)[0]).parent_path();
  std::ofstream(folder / "large.json") << file;
  const CliResult with = run_with(*data, point_of("plan"));
  std::ofstream(folder / "broken.json") << "{";
  const CliResult beside_broken = run_with(*data, point_of("plan"));
  std::filesystem::remove(folder / "large.json");
  std::filesystem::remove(folder / "broken.json");
  ASSERT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(lines_of(with.err).size(), 1U) << with.err;
  for (const char* part :
       {"opt-1.3b is not calibrated here", "256 wide layers", "sluice calibrate --model opt-1.3b"})
    EXPECT_NE(with.err.find(part), std::string::npos) << with.err;
  EXPECT_GT(json::parse(with.out)[0]["latency_s"], 0);
  EXPECT_EQ(beside_broken.out, with.out);
  EXPECT_EQ(lines_of(beside_broken.err).size(), 2U) << beside_broken.err;
}

/// What a simulation with the stand-in accelerator says.
CliResult simulate_with_stand_in(const TemporaryFolder& data, const Arguments& more = {}) {
  return run_with(data, Arguments{"simulate", "--model", "tiny", "--machine", "this", "--policy",
                                  "gpu-only", "--device", "standin:256MiB", "--input-tokens", "64",
                                  "--output-tokens", "8", "--json"} +
                            more);
}

/// With the machine's rates the same in all samples, times are taken as they stand.
void measured_at_one_moment(json& sample) {
  sample["read_gb_per_s"] = 20;
  sample["gemm_tflop_per_s"] = 0.2;
}

TEST_F(CalibratedTest, AnAcceleratorHasAFileOfItsOwnAndSimulationsTakeIt) {
  const CliResult without = simulate_with_stand_in(*data);
  ASSERT_EQ(without.exit_code, 0) << without.err;
  const CliResult result = run_with(*data, calibrate_tiny({"--device", "standin:256MiB"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"ddr to hbm", "hbm to ddr", "task overhead", "-on-stand-in.json"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in " << result.out;
  const std::vector<std::string> files = files_in(*data);
  ASSERT_EQ(files.size(), 2U);
  const std::string& path = files[files[0].ends_with("-on-stand-in.json") ? 0 : 1];
  json file = json::parse(content_of(path));
  EXPECT_EQ(file["setup"]["device"], "stand-in");
  ASSERT_EQ(file["links"].size(), 2U);
  for (const json& link : file["links"]) EXPECT_GE(link["bytes_us"].size(), 3U);
  for (const json& point : file["points"]) {
    for (const char* sublayer : {"qkv_us", "attention_us", "out_proj_us", "fc1_us", "fc2_us"})
      EXPECT_GT(point["samples"].at(0).at(sublayer), 0);
  }
  EXPECT_GE(file["kv_stores"].size(), 4U);
  // Kernels there that take a second each: the simulation goes by that file.
  for (json& point : file["points"]) {
    for (json& sample : point["samples"]) {
      measured_at_one_moment(sample);
      for (const char* sublayer : {"qkv_us", "attention_us", "out_proj_us", "fc1_us", "fc2_us"})
        sample[sublayer] = 1e6;
    }
  }
  std::ofstream(path) << file;
  const CliResult with = simulate_with_stand_in(*data);
  std::filesystem::remove(path);
  ASSERT_EQ(with.exit_code, 0) << with.err;
  const auto seconds = [](const CliResult& of) {
    return json::parse(of.out).at(0).at("latency_s").get<double>();
  };
  const auto layers = file["model"]["num_layers"].get<double>();
  EXPECT_LT(seconds(without), 1);
  // The prompt, and seven tokens more: five sublayers of every layer.
  EXPECT_NEAR(seconds(with) / (8 * 5 * layers), 1, 0.05);
}

/// Seconds of a simulation in which all weights stream to a stand-in whose kernels take long, as
/// `interference` has them slow each other: kernels and data, in times. What comes back takes at
/// least `back_us`.
double streamed_s(const TemporaryFolder& data, const json& cpu, const std::string& path,
                  double kernels_times, double link_times, double back_us = 1e3 / 70) {
  json file = cpu;
  file["setup"]["device"] = "stand-in";
  for (json& point : file["points"]) {
    for (json& sample : point["samples"]) {
      measured_at_one_moment(sample);
      for (auto& [key, value] : sample.items()) {
        if (key.ends_with("_us")) value = 20e3;
      }
    }
  }
  const auto link = [](const char* from, const char* to, double least_us) -> json {
    return {{"from", from},
            {"to", to},
            {"bytes_us", {{1e3, least_us}, {1e9, least_us + 1e9 / 70}}}};  // 70 MB/s
  };
  file["links"] = {link("ddr", "hbm", 1e3 / 70), link("hbm", "ddr", back_us)};
  for (const char* phase : {"prefill", "decode"}) {
    file["interference"].push_back({{"device", "gpu"},
                                    {"phase", phase},
                                    {"kernels_alone_us", 1},
                                    {"kernels_beside_us", kernels_times},
                                    {"link_alone_gb_per_s", link_times},
                                    {"link_beside_gb_per_s", 1}});
  }
  std::ofstream(path) << file;
  const CliResult result = run_with(data, {"simulate",
                                           "--model",
                                           "tiny",
                                           "--machine",
                                           "this",
                                           "--input-tokens",
                                           "64",
                                           "--output-tokens",
                                           "8",
                                           "--policy",
                                           "lia",
                                           "--policy-option",
                                           "prefill=000000",
                                           "--policy-option",
                                           "decode=000000",
                                           "--policy-option",
                                           "opt1=off",
                                           "--device",
                                           "standin:6MiB",
                                           "--json"});
  std::filesystem::remove(path);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out).at(0).at("latency_s").get<double>() : 0;
}

TEST_F(CalibratedTest, KernelsAndDataSlowEachOtherInSimulations) {
  const std::string cpu_path = files_in(*data).at(0);
  const json cpu = json::parse(content_of(cpu_path));
  const std::string path = cpu_path.substr(0, cpu_path.size() - 5) + "-on-stand-in.json";
  const auto seconds = [&](double kernels, double link) {
    return streamed_s(*data, cpu, path, kernels, link);
  };
  const double alone = seconds(1, 1);
  // For as long as data moves, kernels get a third done: two thirds of that time are lost.
  const double kernels_slow = seconds(3, 1) - alone;
  EXPECT_GT(kernels_slow, 0.02 * alone);
  EXPECT_NEAR((seconds(1.5, 1) - alone) / kernels_slow, (1 - 1 / 1.5) / (1 - 1 / 3.0), 0.05);
  // Data that moves while kernels run takes twice as long, and slows them for twice as long. Alone
  // that costs next to nothing here: kernels take ten times as long as data.
  EXPECT_LT(seconds(1, 2) - alone, 0.1 * kernels_slow);
  EXPECT_NEAR((seconds(3, 2) - alone) / kernels_slow, 2, 0.1);
}

TEST_F(CalibratedTest, DevicesOnTheSameCoresSlowEachOtherInSimulations) {
  const std::string cpu_path = files_in(*data).at(0);
  const std::string before = content_of(cpu_path);
  json cpu = json::parse(before);
  const std::string path = cpu_path.substr(0, cpu_path.size() - 5) + "-on-stand-in.json";
  const auto seconds = [&](double kv_store_us) {
    for (json& sample : cpu["kv_stores"]) sample["us"] = kv_store_us;
    std::ofstream(cpu_path) << cpu;
    return streamed_s(*data, cpu, path, 1, 1);
  };
  const double quick = seconds(1);
  const double slow = seconds(30e3);
  std::ofstream(cpu_path) << before;
  // The CPU stores each layer's KV while the stand-in computes the next one, which takes longer, or
  // the head: the prompt's and that of seven tokens more.
  const auto layers = cpu["model"]["num_layers"].get<double>();
  EXPECT_NEAR((slow - quick) / (8 * layers * 30e-3), 1, 0.1);
}

TEST_F(CalibratedTest, AStandInsKernelWaitsForWhatTheOneBeforeSendsBack) {
  const std::string cpu_path = files_in(*data).at(0);
  const json cpu = json::parse(content_of(cpu_path));
  const std::string path = cpu_path.substr(0, cpu_path.size() - 5) + "-on-stand-in.json";
  constexpr double longer_s = 5e-3;
  const double added_s =
      streamed_s(*data, cpu, path, 1, 1, 1e6 * longer_s) - streamed_s(*data, cpu, path, 1, 1, 1);
  // Each layer's new KV comes back before the next layer, or the head, and the drawn tokens before
  // the next iteration, of eight.
  const auto layers = cpu["model"]["num_layers"].get<double>();
  EXPECT_NEAR(added_s / (8 * (layers + 1) * longer_s), 1, 0.1);
}

TEST(CliCalibrateTest, InterruptedGoesOnWhereItWas) {
  const TemporaryFolder data;
  CliProcess first("/usr/bin/env", with_data(data, {"calibrate", "--repeat", "100"}));
  // The first save has no point: how soon there is one depends on the build and the machine.
  wait_until([&] {
    const std::vector<std::string> files = files_in(data);
    return !files.empty() && num_points(files[0]) > 0;
  });
  first.send(SIGINT);
  const CliResult interrupted = first.wait();
  EXPECT_EQ(interrupted.exit_code, 130);
  EXPECT_EQ(interrupted.err, "sluice: interrupted\n");
  const std::string file = files_in(data).at(0);
  // A run of one repetition, interrupted after its first point.
  json few = json::parse(content_of(file));
  few["repetitions"] = 1;
  few["points"] = {few["points"].at(0)};
  few["task_overhead_us"] = json::array();
  const json kept = few["points"].at(0)["samples"].at(0);
  std::ofstream(file) << few.dump();
  const CliResult second = run_with(data, calibrate_tiny());
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("going on with " + file), std::string::npos) << second.err;
  EXPECT_GT(num_points(file), 20U);
  EXPECT_EQ(json::parse(content_of(file))["points"].at(0)["samples"].at(0), kept);
}

TEST(CliCalibrateTest, WithoutACalibrationPlanProbesAndSaysSo) {
  const TemporaryFolder data;
  const CliResult result =
      run_with(data, {"plan", "--model", "tiny", "--machine", "this", "--policy", "cpu-only",
                      "--input-tokens", "64", "--output-tokens", "8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("sluice calibrate --model tiny"), std::string::npos) << result.err;
  EXPECT_GT(json::parse(result.out)[0]["latency_s"], 0);
}

TEST(CliCalibrateTest, ABrokenFileIsSaidAndLeft) {
  const TemporaryFolder data;
  // As long as a run needs to make the file's name known.
  CliProcess first("/usr/bin/env", with_data(data, calibrate_tiny()));
  wait_until([&] { return !files_in(data).empty(); });
  first.send(SIGINT);
  first.wait();
  const std::string file = files_in(data).at(0);
  std::ofstream(file) << "{";
  expect_failure(run_with(data, calibrate_tiny()), 1, {file, "not valid JSON"});
  const CliResult result = run_with(
      data, {"generate", "--prompt", "Once", "--max-tokens", "2", "--temperature", "0", "-q"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_NE(result.err.find("going on without"), std::string::npos) << result.err;
}

TEST(CliCalibrateTest, ErrorsAreOneLine) {
  const TemporaryFolder data;
  expect_failure(run_with(data, {"calibrate", "--check"}), 1, {"tiny is not calibrated"});
  expect_failure(run_with(data, {"calibrate", "--check", "--force"}), 2, {"--force"});
  expect_failure(run_with(data, {"calibrate", "--repeat", "0"}), 2, {"--repeat 0"});
  expect_failure(run_with(data, {"calibrate", "--model", "opt-12m"}), 1, {"known are opt-125m"});
  expect_failure(run_with(data, {"calibrate", "--model", "bloom-176b"}), 1, {"cannot run"});
  expect_failure(run_with(data, {"calibrate", "--device", "standin:8MiB"}), 1,
                 {"8.0 MiB is too little to calibrate", "--device standin:"});
  expect_failure(run_with(data, {"calibrate", "--device", "tpu"}), 2, {"--device tpu"});
  expect_failure(run_with(data, {"calibrate", "--check", "--device", "standin:256MiB"}), 1,
                 {"run sluice calibrate --model tiny --device standin:256MiB first"});
  expect_failure(
      CliProcess("/usr/bin/env", {"XDG_DATA_HOME=/proc", testing::sluice_program(), "calibrate"})
          .wait(),
      1, {"/proc/sluice"});
  expect_failure(run_with(data, {"plan", "--explain", "--batch", "1,2"}), 2, {"--explain"});
}

/// Also where longer prompts and larger batches, which the search for flip points goes on to, do
/// not fit the GPU's memory.
TEST(CliCalibrateTest, PlanExplainsAnyPolicyThatFits) {
  const TemporaryFolder data;
  for (const char* policy : {"gpu-only", "helm", "all-cpu", "auto"}) {
    const CliResult result = run_with(data, {"plan", "--model", "opt-6.7b", "--machine", "spr-a100",
                                             "--policy", policy, "--batch", "1", "--explain"});
    ASSERT_EQ(result.exit_code, 0) << policy << ": " << result.err;
    EXPECT_NE(result.out.find("; more does not fit"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("twice the link to the GPU"), std::string::npos) << result.out;
  }
  for (const char* format : {"--csv", "--markdown"})
    expect_failure(run_with(data, {"plan", "--explain", format}), 2, {"--explain", "leave out"});
}

TEST(CliCalibrateTest, PlanExplainsFlipPointsAndFasterParts) {
  const TemporaryFolder data;
  const CliResult result =
      run_with(data, {"plan", "--model", "opt-30b", "--machine", "spr-a100", "--policy", "lia",
                      "--policy-option", "choose=equation-1", "--batch", "8", "--explain"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"flip point of prefill: 111111 -> 000000 at B x L = ",
                           "flip point of decode: 111111 -> 011000 at B = ",
                           "twice the link to the GPU", "twice the DDR bandwidth"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in " << result.out;
  }
}

}  // namespace
}  // namespace sluice
