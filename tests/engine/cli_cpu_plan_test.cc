// Plans for the CPU's cores from outside: what they give, and what is refused.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/topology.h"
#include "tests/support/cli_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using testing::run_cli;

const Arguments generate = {"generate", "--prompt", "Once upon a time", "--max-tokens", "20", "-q"};

class CliCpuPlanTest : public ::testing::Test {
 protected:
  std::string write(const json& plan) {
    const std::string path = folder_.file("plan.json");
    std::ofstream(path) << plan;
    return path;
  }
  /// Prompts on every core; decode on the last one alone.
  static json decode_on_one() {
    const std::vector<int> cores = Topology::of_this_machine().cores();
    const std::vector<int> others(cores.begin(), cores.end() - 1);
    json plan = {{"prefill", {{"groups", {{{"cores", cores}, {"share", 1}}}}}},
                 {"decode",
                  {{"groups", {{{"cores", {cores.back()}}, {"share", 1}}}}, {"left_out", others}}}};
    return plan;
  }

  test::TemporaryFolder folder_;
};

TEST_F(CliCpuPlanTest, TextIsTheSameUnderEachPlan) {
  const std::string text = run_cli(generate).out;
  ASSERT_FALSE(text.empty());
  for (const std::string& plan :
       {std::string("interleaved"), std::string("static"), write(decode_on_one())}) {
    const CliResult result = run_cli(generate + Arguments{"--cpu-plan", plan});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, text) << plan;
  }
}

TEST_F(CliCpuPlanTest, PlanInForceIsReportedAndCanBeGivenAgain) {
  const std::string stats = folder_.file("stats.json");
  const std::string plan = write(decode_on_one());
  const CliResult result = run_cli(generate + Arguments{"--cpu-plan", plan, "--stats", stats});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(stats);
  const json reported = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(reported["cpu_plan"]["decode"]["left_out"], decode_on_one()["decode"]["left_out"]);
  EXPECT_EQ(reported["cpu_plan"]["prefill"]["groups"].size(), 1U);
  EXPECT_EQ(run_cli(generate + Arguments{"--cpu-plan", stats}).out, result.out);
  const std::string info = folder_.file("info.json");
  std::ofstream(info) << run_cli({"info", "--json"}).out;
  EXPECT_EQ(run_cli(generate + Arguments{"--cpu-plan", info}).out, result.out);
}

TEST_F(CliCpuPlanTest, CoresThatThreadsShareStandInThePlanOnce) {
  const std::vector<int> cores = Topology::of_this_machine().cores();
  const std::string stats = folder_.file("stats.json");
  const CliResult result = run_cli(
      generate + Arguments{"--threads", std::to_string(cores.size() + 1), "--stats", stats});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(stats);
  const json reported = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(reported["cpu_plan"]["decode"]["groups"][0]["cores"], cores);
  EXPECT_EQ(run_cli(generate + Arguments{"--cpu-plan", stats}).out, result.out);
}

TEST_F(CliCpuPlanTest, BenchSaysThePlan) {
  const Arguments bench = {"bench", "--model", "tiny", "-p", "8", "-n", "4", "--repeat", "1"};
  const CliResult by_plan = run_cli(bench + Arguments{"--cpu-plan", write(decode_on_one())});
  EXPECT_EQ(by_plan.exit_code, 0) << by_plan.err;
  const int last = Topology::of_this_machine().cores().back();
  if (last > 0) {
    EXPECT_NE(by_plan.out.find(fmt::format("; decode {}\n", last)), std::string::npos)
        << by_plan.out;
  }
  EXPECT_EQ(run_cli(bench).out.find("CPU plan"), std::string::npos);
}

/// With a data folder of its own, where nothing is tuned.
class CliTuneTest : public CliCpuPlanTest {
 protected:
  CliResult run(const Arguments& arguments) {
    return testing::CliProcess("/usr/bin/env", Arguments{"XDG_DATA_HOME=" + folder_.file("data"),
                                                         testing::sluice_program()} +
                                                   arguments)
        .wait();
  }
  CliResult tune(const Arguments& more = {}) {
    return run(Arguments{"tune", "--model", "tiny", "--repeat", "2"} + more);
  }
};

TEST_F(CliTuneTest, FindsAPlanThatAutoUses) {
  const CliResult before = run(generate + Arguments{"--cpu-plan", "auto"});
  EXPECT_EQ(before.exit_code, 0);
  EXPECT_NE(before.err.find("(sluice tune --model tiny)"), std::string::npos) << before.err;

  const CliResult tuned = tune({"--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const json found = json::parse(tuned.out);
  const std::size_t cores = Topology::of_this_machine().cores().size();
  for (const char* phase : {"prefill", "decode"}) {
    EXPECT_GT(found["cpu_plan"][phase]["measured_s"], 0) << phase;
    EXPECT_GT(found["cpu_plan"][phase]["predicted_s"], 0) << phase;
    EXPECT_LE(found[phase]["plans"].size(), 10U);
  }
  std::size_t of_prefill = 0;
  for (const json& group : found["cpu_plan"]["prefill"]["groups"])
    of_prefill += group["cores"].size();
  EXPECT_EQ(of_prefill, cores) << "prefill takes every core";

  const std::string stats = folder_.file("stats.json");
  const CliResult after = run(generate + Arguments{"--cpu-plan", "auto", "--stats", stats});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(after.out, before.out);
  EXPECT_EQ(after.err.find("not tuned"), std::string::npos) << after.err;
  std::ifstream file(stats);
  const json reported = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(reported["cpu_plan"], found["cpu_plan"]);

  // What it printed is a plan as well, and a second call measures nothing.
  EXPECT_EQ(run(generate + Arguments{"--cpu-plan", write(found)}).out, before.out);
  const CliResult again = tune({"--json"});
  EXPECT_NE(again.err.find("is tuned already"), std::string::npos) << again.err;
  EXPECT_EQ(json::parse(again.out)["cpu_plan"], found["cpu_plan"]);
}

/// Who may use other cores, as many, has another plan.
TEST_F(CliTuneTest, APlanHoldsForItsCores) {
  const std::vector<int> cores = Topology::of_this_machine().cores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  const auto on = [&](int core, const Arguments& arguments) {
    return testing::CliProcess("/usr/bin/env",
                               Arguments{"XDG_DATA_HOME=" + folder_.file("data"), "taskset", "-c",
                                         std::to_string(core), testing::sluice_program()} +
                                   arguments)
        .wait();
  };
  const Arguments tune = {"tune", "--model", "tiny", "--repeat", "2"};
  const Arguments run = generate + Arguments{"--cpu-plan", "auto"};
  ASSERT_EQ(on(cores[0], tune).exit_code, 0);
  EXPECT_EQ(on(cores[0], run).err.find("is not tuned"), std::string::npos);
  const CliResult other = on(cores[1], run);
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(other.err.find("is not tuned on 1 core (sluice tune --model tiny)"), std::string::npos)
      << other.err;
  EXPECT_EQ(on(cores[1], tune).exit_code, 0);
  for (const int core : {cores[0], cores[1]})
    EXPECT_EQ(on(core, run).err.find("is not tuned"), std::string::npos);
}

TEST_F(CliTuneTest, DryRunShowsPlansAndKeepsNothing) {
  const CliResult here = tune({"--dry-run", "--json"});
  ASSERT_EQ(here.exit_code, 0) << here.err;
  EXPECT_FALSE(json::parse(here.out).contains("cpu_plan"));
  EXPECT_FALSE(std::filesystem::exists(folder_.file("data") + "/sluice/calibration"));
  // 2 nodes of 2 cores: one group, a group a node, a group a core, and groups across the nodes.
  const CliResult there = tune({"--dry-run", "--topology", "numa:2 core:2 pu:1", "--json"});
  ASSERT_EQ(there.exit_code, 0) << there.err;
  std::set<json> prefill;
  const json found = json::parse(there.out);
  for (const json& plan : found["prefill"]["plans"]) {
    json cores = json::array();
    for (const json& group : plan["groups"]) cores.push_back(group["cores"]);
    prefill.insert(cores);
  }
  EXPECT_TRUE(prefill.contains(json::parse("[[0,1],[2,3]]"))) << there.out;
  EXPECT_TRUE(prefill.contains(json::parse("[[0,1,2,3]]"))) << there.out;
  const CliResult words = tune({"--dry-run", "--topology", "numa:2 core:2 pu:1"});
  EXPECT_NE(words.out.find("0-1 | 2-3"), std::string::npos) << words.out;
}

TEST_F(CliTuneTest, BadInputIsOneLine) {
  expect_failure(tune({"--topology", "core:2"}), 2, {"--topology", "add --dry-run"});
  expect_failure(tune({"--top", "0"}), 2, {"--top 0", "1 to 1000"});
  expect_failure(run({"tune", "--model", "nothing"}), 1, {"nothing"});
  ASSERT_EQ(tune().exit_code, 0);
  std::string file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.file("data"))) {
    if (entry.path().extension() == ".json") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  std::ofstream(file) << "{";
  expect_failure(run(generate + Arguments{"--cpu-plan", "auto"}), 1, {file, "JSON"});
  expect_failure(tune(), 1, {file, "JSON", "--force begins anew"});
  EXPECT_EQ(tune({"--force"}).exit_code, 0) << "measures again";
  EXPECT_EQ(run(generate + Arguments{"--cpu-plan", "auto"}).exit_code, 0);
}

class CliTuneKernelsTest : public CliTuneTest {
 protected:
  CliResult tune_kernels(const Arguments& more = {}, const std::string& rows = "3") {
    return run(Arguments{"tune", "--model", "tiny", "--kernels", "--rows", rows} + more);
  }
  /// What `generate` says of the schedules that it followed.
  json stats_of_run() {
    const std::string stats = folder_.file("stats.json");
    const CliResult result = run(generate + Arguments{"--stats", stats});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    text_ = result.out;
    std::ifstream file(stats);
    return json::parse(file);
  }

  std::string text_;  ///< of the last run
};

TEST_F(CliTuneKernelsTest, RunsFollowWhatIsFoundAndSayTheSame) {
  EXPECT_EQ(stats_of_run()["tuned_gemm_shapes"], 0);
  const std::string text = text_;
  const CliResult dry = tune_kernels({"--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_NE(dry.out.find("3, up to 3"), std::string::npos) << dry.out;
  const CliResult tuned = tune_kernels({"--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const json found = json::parse(tuned.out);
  const std::size_t shapes = found["shapes"].size();
  ASSERT_GT(shapes, 0U);
  EXPECT_EQ(found["searched"], 3 * shapes);
  EXPECT_EQ(found["compared"].size(), 2 * shapes) << "1 and 2 rows";
  const auto is_used = [](const json& row) { return row["is_used"].get<bool>(); };
  const auto num_used =
      std::count_if(found["shapes"].begin(), found["shapes"].end(), [&](const json& shape) {
        return std::any_of(shape["rows"].begin(), shape["rows"].end(), is_used);
      });
  EXPECT_EQ(stats_of_run()["tuned_gemm_shapes"], num_used);
  EXPECT_EQ(text_, text);
  const CliResult again = tune_kernels();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("\n0 numbers of rows searched"), std::string::npos) << again.out;
  const json more = json::parse(tune_kernels({"--json"}, "4").out);
  EXPECT_EQ(more["searched"], shapes) << "only what is new";
}

TEST_F(CliTuneKernelsTest, TwoAtOnceKeepWhatBothHaveFound) {
  const auto start = [&](const char* threads) {
    return std::make_unique<testing::CliProcess>(
        "/usr/bin/env",
        Arguments{"XDG_DATA_HOME=" + folder_.file("data"), testing::sluice_program(), "tune",
                  "--model", "tiny", "--kernels", "--rows", "2", "--threads", threads});
  };
  if (Topology::of_this_machine().cores().size() < 2) GTEST_SKIP() << "one core";
  const auto one = start("1");
  const auto two = start("2");
  ASSERT_EQ(one->wait().exit_code, 0);
  ASSERT_EQ(two->wait().exit_code, 0);
  const json again = json::parse(
      run({"tune", "--model", "tiny", "--kernels", "--rows", "2", "--threads", "1", "--json"}).out);
  EXPECT_EQ(again["searched"], 0);
  EXPECT_EQ(json::parse(tune_kernels({"--json"}, "2").out)["searched"], 0);
}

TEST_F(CliTuneKernelsTest, BadInputIsOneLine) {
  expect_failure(tune({"--rows", "5"}), 2, {"--rows", "--kernels"});
  expect_failure(tune({"--kernels"}), 2, {"--repeat", "--kernels"});
  expect_failure(tune_kernels({}, "0"), 2, {"--rows 0", "from 1"});
  ASSERT_EQ(tune_kernels().exit_code, 0);
  std::string file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.file("data"))) {
    if (entry.path().parent_path().filename() == "gemm-schedules") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  std::ifstream kept(file);
  json other = json::parse(kept);
  other["topology"] = "another";
  std::ofstream(file) << other;
  expect_failure(run(generate), 1, {file, "another machine", "--force"});
  std::ofstream(file) << "{";
  expect_failure(run(generate), 1, {file, "JSON", "sluice tune --kernels --force"});
  expect_failure(tune_kernels(), 1, {file, "JSON", "--force"});
  EXPECT_EQ(tune_kernels({"--force"}).exit_code, 0) << "tunes again";
  EXPECT_EQ(run(generate).exit_code, 0);
}

TEST_F(CliCpuPlanTest, InfoShowsAMachineThatATextDescribes) {
  const std::string text = "pack:2 numa:2 core:4 pu:2";
  const CliResult words = run_cli({"info", "--topology", text});
  ASSERT_EQ(words.exit_code, 0) << words.err;
  EXPECT_NE(words.out.find("2 packages, 4 NUMA nodes, 16 cores, 32 hardware threads"),
            std::string::npos)
      << words.out;
  EXPECT_NE(words.out.find("25 % of the columns"), std::string::npos) << words.out;
  const json object = json::parse(run_cli({"info", "--topology", text, "--json"}).out);
  EXPECT_EQ(object["cpu_plan"]["decode"]["groups"].size(), 4U);
  EXPECT_EQ(object["memory_nodes"].size(), 4U);
}

TEST_F(CliCpuPlanTest, BadPlansAreRefusedInOneLine) {
  const auto refused = [&](const Arguments& arguments, int exit_code,
                           const std::vector<std::string>& parts) {
    expect_failure(run_cli(generate + arguments), exit_code, parts);
  };
  refused({"--cpu-plan", "/nonexistent.json"}, 1,
          {"--cpu-plan /nonexistent.json", "auto, interleaved, static, or a file"});
  json plan = decode_on_one();
  plan["decode"]["groups"][0]["cores"].push_back(100'000);
  refused({"--cpu-plan", write(plan)}, 1, {"plan.json", "core 100000 is not there"});
  plan = decode_on_one();
  plan["prefill"]["groups"][0]["share"] = 0.5;
  refused({"--cpu-plan", write(plan)}, 1, {"plan.json", "the shares add up to 0.5, expected 1"});
  plan = decode_on_one();
  plan["topology"] = "machine(0)";
  refused({"--cpu-plan", write(plan)}, 1, {"plan.json", "a plan of another machine"});
  std::ofstream(folder_.file("cut.json")) << R"({"prefill": {"groups": [)";
  refused({"--cpu-plan", folder_.file("cut.json")}, 1, {"cut.json", "JSON"});
  refused({"--cpu-plan", write(decode_on_one()), "--threads", "500"}, 2,
          {"--threads 500", "leave --threads out"});
  refused({"--cpu-plan", "static", "--threads", "500"}, 2, {"--threads 500", "a thread a core"});
  refused({"--domains", "2"}, 2, {"--domains is gone", "--cpu-plan static"});
  expect_failure(run_cli({"info", "--topology", "pack:0"}), 1, {"topology \"pack:0\"", "hwloc"});
  expect_failure(run_cli({"info", "--topology", "pack:1 core:2", "--memory"}), 2, {"--memory"});
  const Arguments replay = {"replay",     "--estimate", "--model",   "opt-30b",
                            "--requests", "2",          "--lengths", "uniform:50,4"};
  expect_failure(run_cli(replay + Arguments{"--machine", "spr-a100", "--cpu-plan", "static"}), 1,
                 {"--cpu-plan", "spr-a100 does not describe its CPU's cores"});
  expect_failure(
      run_cli(replay + Arguments{"--machine", "xeon-6151-2", "--cpu-plan", "/nonexistent.json"}), 1,
      {"--cpu-plan /nonexistent.json"});
}

}  // namespace
}  // namespace sluice
