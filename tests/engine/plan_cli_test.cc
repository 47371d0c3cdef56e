// `sluice plan` from outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/cli_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::lines_of;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;

CliResult plan(const Arguments& more) { return run_cli(Arguments{"plan"} + more); }

/// The objects of a run that succeeds.
json plan_json(Arguments more) {
  more.emplace_back("--json");
  const CliResult result = plan(more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

void expect_contains(const std::string& text, const Arguments& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
}

bool is_placement(const json& value) {
  const std::string text = value.get<std::string>();
  return text.size() == 6 && text.find_first_not_of("01") == std::string::npos;
}

// ---- JSON

// tiny has 512 positions, where 512 tokens in and 128 out are the defaults.
TEST(PlanCliTest, DefaultLengthsFitTheModelsContext) {
  const json point = plan_json({"--model", "tiny", "--machine", "spr-a100", "--policy", "lia"})[0];
  EXPECT_EQ(point.count("problem"), 0U) << point;
  EXPECT_EQ(point["output_tokens"], 128);
  EXPECT_EQ(point["input_tokens"], 384);
  // What was asked for is not changed.
  expect_failure(plan({"--model", "tiny", "--machine", "spr-a100", "--policy", "lia",
                       "--input-tokens", "512"}),
                 1, {"128 tokens out after 512 in", "512 positions"});
}

TEST(PlanCliTest, JsonHasTheFieldsOfTheDocumentation) {
  const json all = plan_json({"--model", "opt-30b", "--machine", "spr-a100", "--policy", "lia",
                              "--batch", "64", "--input-tokens", "256", "--output-tokens", "32"});
  ASSERT_EQ(all.size(), 1U);
  const json& point = all[0];
  std::set<std::string> keys;
  for (const auto& [key, value] : point.items()) keys.insert(key);
  EXPECT_EQ(keys,
            (std::set<std::string>{"model",         "machine",          "policy",
                                   "batch",         "input_tokens",     "output_tokens",
                                   "prefill",       "decode",           "resident_layers",
                                   "bytes",         "ttft_s",           "tpot_s",
                                   "latency_s",     "tokens_per_s",     "energy_j",
                                   "mean_watts",    "joules_per_token", "usd_per_million_tokens",
                                   "lower_bound_s", "binding_resource", "lower_bound_share",
                                   "fits",          "weights_stay"}));
  EXPECT_EQ(point["model"], "opt-30b");
  EXPECT_EQ(point["machine"], "spr-a100");
  EXPECT_EQ(point["policy"], "lia");
  EXPECT_EQ(point["batch"], 64);
  EXPECT_EQ(point["input_tokens"], 256);
  EXPECT_EQ(point["output_tokens"], 32);
  EXPECT_TRUE(point["resident_layers"].is_number_integer());
  EXPECT_EQ(point["fits"], true);
  for (const char* tier : {"hbm", "ddr", "cxl", "disk"})
    EXPECT_TRUE(point["bytes"][tier].is_number()) << tier;
  EXPECT_EQ(point["bytes"].size(), 4U);
  for (const char* phase : {"prefill", "decode"}) {
    EXPECT_TRUE(is_placement(point[phase]["placement"]));
    for (const char* field : {"load_s", "cpu_s", "gpu_s", "store_s", "disk_s", "iteration_s"})
      EXPECT_GE(point[phase][field].get<double>(), 0) << field;
    EXPECT_EQ(point[phase]["layers"][0]["sublayers"].size(), 6U);
  }
}

TEST(PlanCliTest, FiguresAgreeWithEachOther) {
  for (const json& point : plan_json({"--policy", "lia,flexgen,cpu-only", "--batch", "1,64",
                                      "--input-tokens", "256", "--output-tokens", "32"})) {
    const double ttft_s = point["ttft_s"];
    const double tpot_s = point["tpot_s"];
    const double latency_s = point["latency_s"];
    EXPECT_NEAR(latency_s, ttft_s + 31 * tpot_s, 1e-9 * latency_s);
    EXPECT_NEAR(point["tokens_per_s"].get<double>() * latency_s, point["batch"].get<int>() * 32,
                1e-6);
    EXPECT_NEAR(point["prefill"]["iteration_s"].get<double>(), ttft_s, 1e-9);
    EXPECT_NEAR(point["decode"]["iteration_s"].get<double>(), tpot_s, 1e-9);
    const double bound_s = point["lower_bound_s"];
    EXPECT_LE(bound_s, latency_s * (1 + 1e-9));
    EXPECT_NEAR(point["lower_bound_share"].get<double>(), bound_s / latency_s, 1e-9);
    const std::map<std::string, std::string> fields = {{"cpu", "cpu_s"},
                                                       {"gpu", "gpu_s"},
                                                       {"link to gpu", "load_s"},
                                                       {"link to cpu", "store_s"},
                                                       {"disk", "disk_s"}};
    const std::string field = fields.at(point["binding_resource"]);
    EXPECT_NEAR(point["prefill"][field].get<double>() + point["decode"][field].get<double>(),
                bound_s, 1e-9 * bound_s);
    std::int64_t layers = 0;
    for (const json& group : point["decode"]["layers"])
      layers += group["num_layers"].get<std::int64_t>();
    EXPECT_EQ(layers, 48);
  }
}

TEST(PlanCliTest, EnergyAndPriceAreThoseOfTheProfile) {
  // spr-a100: 150 + 120 + 45 W with nothing to do, 210 more while the CPU works, 205 while the GPU
  // does; $24,750 over three years, and 150 + 330 + 250 W at 0.1 $/kWh.
  const json point = plan_json(
      {"--policy", "lia", "--batch", "64", "--input-tokens", "256", "--output-tokens", "32"})[0];
  const double latency_s = point["latency_s"];
  double energy_j = 315 * latency_s;
  for (const char* phase : {"prefill", "decode"})
    energy_j +=
        210 * point[phase]["cpu_s"].get<double>() + 205 * point[phase]["gpu_s"].get<double>();
  EXPECT_NEAR(point["energy_j"].get<double>(), energy_j, 1e-9 * energy_j);
  EXPECT_NEAR(point["mean_watts"].get<double>(), energy_j / latency_s, 1e-6);
  EXPECT_NEAR(point["joules_per_token"].get<double>(), energy_j / (64 * 32), 1e-6);
  const double usd_per_s = 24750 / (3 * 365 * 86400.0) + 0.730 * 0.1 / 3600;
  const double usd = usd_per_s * latency_s / (64 * 32) * 1e6;
  EXPECT_NEAR(point["usd_per_million_tokens"].get<double>(), usd, 1e-9 * usd);
}

TEST(PlanCliTest, WhatAProfileDoesNotTellIsNotGuessed) {
  const json point = plan_json({"--policy", "lia", "--machine", "grace-hopper"})[0];
  EXPECT_TRUE(point["joules_per_token"].is_null());
  EXPECT_TRUE(point["usd_per_million_tokens"].is_null());
  expect_contains(point["running_costs_problem"], {"lacks cpu.idle_watts, cpu.busy_watts"});
  const CliResult told = plan({"--policy", "lia", "--machine", "grace-hopper"});
  expect_contains(told.out, {"energy and price are not known: the profile lacks cpu.idle_watts"});
}

TEST(PlanCliTest, ListsMakeOneObjectAPoint) {
  const json all = plan_json({"--model", "opt-30b,opt-66b", "--machine", "spr-a100,spr-h100",
                              "--policy", "lia,cpu-only", "--batch", "1,8", "--input-tokens",
                              "32,64", "--output-tokens", "4,8,16"});
  ASSERT_EQ(all.size(), 96U);
  std::set<std::string> points;
  for (const json& point : all) {
    points.insert(point["model"].dump() + point["machine"].dump() + point["policy"].dump() +
                  point["batch"].dump() + " " + point["input_tokens"].dump() + " " +
                  point["output_tokens"].dump());
  }
  EXPECT_EQ(points.size(), 96U);
}

TEST(PlanCliTest, OneTokenNeedsNoDecoding) {
  const json point = plan_json({"--policy", "lia", "--output-tokens", "1"})[0];
  EXPECT_EQ(point["latency_s"], point["ttft_s"]);
  EXPECT_EQ(point["decode"]["iterations"], 0);
}

TEST(PlanCliTest, SaysSoWhereNoPolicyFits) {
  const CliResult result = run_cli({"plan", "--model", "opt-175b", "--machine", "g5-4xlarge"});
  EXPECT_EQ(result.exit_code, 0);
  expect_contains(result.err, {"no policy's plan fits; with more memory"});
  EXPECT_EQ(result.err.find("is fastest"), std::string::npos) << result.err;
}

TEST(PlanCliTest, AutoIsTheFastestThatFits) {
  const CliResult result = plan({"--batch", "64", "--json"});
  const json chosen = json::parse(result.out)[0];
  expect_contains(result.err, {"is fastest", "gpu-only does not fit"});
  for (const json& other :
       plan_json({"--batch", "64", "--policy", "lia,flexgen,cpu-only,all-cpu"})) {
    if (other.contains("problem")) continue;
    EXPECT_LE(chosen["latency_s"].get<double>(), other["latency_s"].get<double>());
  }
}

// ---- Other forms

TEST(PlanCliTest, TheLargestBatchFitsAndOneMoreDoesNot) {
  // cpu-only is short of DDR, all-cpu of HBM, lia of either as its resident layers go.
  for (const char* policy : {"cpu-only", "all-cpu", "lia"}) {
    const Arguments point = {"--policy", policy, "--input-tokens", "128", "--output-tokens", "16"};
    const json largest = plan_json(point + Arguments{"--batch", "max"})[0];
    EXPECT_EQ(largest["fits"], true) << policy;
    const auto batch = largest["batch"].get<std::int64_t>();
    EXPECT_GT(batch, 64) << policy;
    const json both = plan_json(
        point + Arguments{"--batch", std::to_string(batch) + "," + std::to_string(batch + 1)});
    EXPECT_EQ(both[0], largest) << policy;
    EXPECT_TRUE(both[1].contains("problem") || both[1]["fits"] == false) << policy;
  }
}

TEST(PlanCliTest, OfDifferentBatchesTheMostTokensASecondAreFastest) {
  const Arguments point = {"--batch", "max", "--input-tokens", "128", "--output-tokens", "16"};
  const CliResult result = plan(point + Arguments{"--json"});
  const json chosen = json::parse(result.out)[0];
  expect_contains(result.err, {"is fastest", "tokens/s with", "gpu-only does not fit"});
  for (const json& other : plan_json(point + Arguments{"--policy", "lia,flexgen,all-cpu"}))
    EXPECT_GE(chosen["tokens_per_s"].get<double>(), other["tokens_per_s"].get<double>());
}

TEST(PlanCliTest, WhereNoSequenceFitsTheLargestBatchIsTheProblemOfOne) {
  const Arguments point = {"--model", "opt-175b", "--policy", "gpu-only", "--batch"};
  const CliResult largest = plan(point + Arguments{"max"});
  EXPECT_EQ(largest.exit_code, 1);
  EXPECT_EQ(largest.err, plan(point + Arguments{"1"}).err);
  expect_contains(largest.err, {"its weights alone are too many"});
}

TEST(PlanCliTest, CsvIsOneLineAPoint) {
  const CliResult result = plan({"--policy", "lia,gpu-only", "--batch", "1,64", "--csv"});
  EXPECT_EQ(result.exit_code, 0);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0],
            "model,machine,policy,batch,input_tokens,output_tokens,prefill_placement,"
            "decode_placement,resident_layers,ttft_s,tpot_s,latency_s,tokens_per_s,lower_bound_s,"
            "binding_resource,hbm_bytes,ddr_bytes,cxl_bytes,disk_bytes,joules_per_token,"
            "usd_per_million_tokens,problem");
  EXPECT_TRUE(lines[1].starts_with("opt-30b,spr-a100,lia,1,512,128,")) << lines[1];
  // No plan: nothing but the reason, quoted for its commas.
  EXPECT_TRUE(lines[2].starts_with("opt-30b,spr-a100,gpu-only,1,512,128,,,,,,,,,,,,,,,,\"policy"))
      << lines[2];
}

TEST(PlanCliTest, MarkdownIsATable) {
  const CliResult result = plan({"--policy", "lia", "--batch", "1,64", "--markdown"});
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4U);
  for (const std::string& line : lines) {
    EXPECT_TRUE(line.starts_with("|") && line.ends_with("|")) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 16) << line;
  }
}

TEST(PlanCliTest, ANoteHasItsColumnOnlyWhereThereIsOne) {
  const std::vector<std::string> without =
      lines_of(plan({"--policy", "lia", "--batch", "1,64"}).out);
  EXPECT_EQ(without[0].find("note"), std::string::npos);
  const std::vector<std::string> with =
      lines_of(plan({"--policy", "lia,gpu-only", "--batch", "1"}).out);
  expect_contains(with[0], {"note"});
  expect_contains(with[2], {"gpu-only", "its weights alone are too many"});
}

TEST(PlanCliTest, OnePointIsToldAtLength) {
  const CliResult result = plan({"--policy", "lia", "--batch", "64", "--model", "opt-175b"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  expect_contains(result.out, {"opt-175b on spr-a100 with lia: batch 64, 512 tokens in, 128 out",
                               "prefill: 1 x", "decode: 127 x", "placement 000000", "out_proj",
                               "weights", "time to first token", "the busiest part"});
}

// ---- What does not fit

TEST(PlanCliTest, HbmThatIsTooSmallIsAnError) {
  expect_failure(plan({"--model", "opt-175b", "--policy", "gpu-only"}), 1,
                 {"opt-175b on spr-a100: policy gpu-only", "of hbm", "which holds 39.50 GiB",
                  "its weights alone are too many"});
  expect_failure(plan({"--model", "opt-30b", "--policy", "helm", "--batch", "900"}), 1,
                 {"of hbm", "a smaller batch or shorter sequences need less"});
}

TEST(PlanCliTest, InAListItIsAProblemOfThatPoint) {
  const json all = plan_json({"--policy", "lia,gpu-only"});
  EXPECT_TRUE(all[0].contains("latency_s"));
  EXPECT_FALSE(all[1].contains("latency_s"));
  expect_contains(all[1]["problem"], {"of hbm"});
}

TEST(PlanCliTest, AListInWhichSomePointsFailSaysWhichAndSucceeds) {
  const CliResult result =
      plan({"--policy", "lia,gpu-only", "--batch", "1,64", "--input-tokens", "256", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const std::vector<std::string> lines = lines_of(result.err);
  ASSERT_EQ(lines.size(), 2U) << result.err;
  expect_contains(lines[0], {"sluice: opt-30b on spr-a100, batch 1, 256 tokens in: policy gpu-only",
                             "its weights alone are too many"});
  expect_contains(lines[1], {"sluice: opt-30b on spr-a100, batch 64, 256 tokens in: policy gpu"});
}

TEST(PlanCliTest, AListInWhichEveryPointFailsFails) {
  for (const char* format : {"--json", "--csv", "--markdown"}) {
    const CliResult result =
        plan({"--model", "opt-175b", "--policy", "gpu-only", "--batch", "1,8", format});
    EXPECT_EQ(result.exit_code, 1) << format;
    const std::vector<std::string> lines = lines_of(result.err);
    ASSERT_EQ(lines.size(), 2U) << result.err;
    expect_contains(lines[0], {"opt-175b on spr-a100, batch 1, 512 tokens in", "of hbm"});
    expect_contains(lines[1], {"opt-175b on spr-a100, batch 8, 512 tokens in", "of hbm"});
    expect_contains(result.out, {"its weights alone are too many"});
  }
}

TEST(PlanCliTest, DdrThatIsTooSmallIsSaid) {
  // KV of 900 sequences of 288 tokens of OPT-175B: 1.2 TB, in 512 GiB.
  const json point = plan_json({"--model", "opt-175b", "--policy", "lia", "--batch", "900",
                                "--input-tokens", "256", "--output-tokens", "32"})[0];
  EXPECT_EQ(point["fits"], false);
  expect_contains(point["shortage"], {"of ddr", "which holds 512.00 GiB"});
  EXPECT_GT(point["latency_s"].get<double>(), 0);
  const CliResult told = plan({"--model", "opt-175b", "--policy", "lia", "--batch", "900"});
  EXPECT_EQ(told.exit_code, 0);
  expect_contains(told.out, {"this machine is too small", "of ddr"});
}

TEST(PlanCliTest, ParametersTierOverridesThePolicy) {
  // At this batch the GPU alone reads the weights, and LIA moves them to CXL memory by itself.
  Arguments point = {"--policy", "lia", "--batch", "900", "--parameters-tier"};
  const json by_policy = plan_json({"--policy", "lia", "--batch", "900"})[0];
  EXPECT_GT(by_policy["bytes"]["cxl"], 0);
  point.emplace_back("ddr");
  const json in_ddr = plan_json(point)[0];
  EXPECT_EQ(in_ddr["bytes"]["cxl"], 0);
  EXPECT_NEAR(in_ddr["bytes"]["ddr"].get<double>() - by_policy["bytes"]["ddr"].get<double>(),
              by_policy["bytes"]["cxl"].get<double>(), 1);
  point.back() = "cxl";
  EXPECT_EQ(plan_json(point)[0], by_policy);
}

TEST(PlanCliTest, TheCpuAloneNeedsNoHbm) {
  const json point = plan_json({"--model", "opt-175b", "--policy", "cpu-only", "--batch", "64"})[0];
  EXPECT_EQ(point["bytes"]["hbm"], 0);
}

// ---- Mixtures of experts

TEST(PlanCliTest, RoutingIsUniformWithoutTheOption) {
  const Arguments point = {"--model", "mixtral-8x7b", "--policy", "lia", "--batch", "4"};
  const json plain = plan_json(point);
  EXPECT_EQ(plan_json(point + Arguments{"--routing", "uniform"}), plain);
  EXPECT_EQ(plan_json(point + Arguments{"--routing", "zipf:0"}), plain);
  const double even_s = plain[0]["tpot_s"];
  // The hotter some are, the fewer are touched.
  const double warm_s = plan_json(point + Arguments{"--routing", "zipf:1"})[0]["tpot_s"];
  const double hot_s = plan_json(point + Arguments{"--routing", "zipf:4"})[0]["tpot_s"];
  EXPECT_LT(warm_s, even_s);
  EXPECT_LT(hot_s, warm_s);
  // A single row has its two, whichever they are.
  const Arguments one = {"--model", "mixtral-8x7b", "--policy", "cpu-only", "--input-tokens",
                         "1",       "--batch",      "1"};
  EXPECT_NEAR(plan_json(one + Arguments{"--routing", "zipf:2"})[0]["tpot_s"].get<double>(),
              plan_json(one)[0]["tpot_s"].get<double>(), 1e-9);
}

/// By Zipf's law few experts of each layer catch most: no layer has all of them in HBM.
TEST(PlanCliTest, HotExpertsOfALayerAreShown) {
  const Arguments point = {"--model",   "qwen3-30b-a3b", "--machine",       "spr-a100",
                           "--policy",  "experts",       "--batch",         "1",
                           "--routing", "zipf:1",        "--output-tokens", "16"};
  const json decode = plan_json(point)[0]["decode"];
  ASSERT_EQ(decode["layers"].size(), 1U) << decode;
  const json hot = decode["layers"][0]["hot_experts"];
  const double number = hot["number"];
  EXPECT_GT(number, 16);
  EXPECT_EQ(hot["bytes"], number * 3 * 2048 * 768 * 2);
  EXPECT_GT(hot["share"], number / 128);  // the most frequent ones
  EXPECT_GT(hot["gpu_s"], 0);
  expect_contains(plan(point).out, {"experts a layer in hbm", "% of choices"});
  const json none = plan_json(point + Arguments{"--policy-option", "hot=none"})[0]["decode"];
  EXPECT_EQ(none["layers"][0].count("hot_experts"), 0U);
}

TEST(PlanCliTest, WrongRoutingsAreSaid) {
  const TemporaryFolder folder;
  const auto with = [](const std::string& model, const std::string& routing) {
    return plan({"--model", model, "--policy", "lia", "--routing", routing});
  };
  expect_failure(with("opt-30b", "zipf:1"), 2, {"--routing zipf:1", "opt-30b has no experts"});
  for (const char* text : {"zipf:", "zipf:-1", "zipf:9", "zipf:x", "zipf:1x", "zipf:nan"})
    expect_failure(with("mixtral-8x7b", text), 2, {text, "zipf:S", "from 0 to 8"});
  expect_failure(with("mixtral-8x7b", "-"), 2, {"--routing -", "a routing file"});
  expect_failure(with("mixtral-8x7b", "/nonexistent/routing"), 1, {"/nonexistent/routing"});
  folder.write("other.json", R"({"model": "qwen3-30b-a3b", "rows": 1, "layers": []})");
  expect_failure(with("mixtral-8x7b", folder.file("other.json")), 1,
                 {"other.json", "\"qwen3-30b-a3b\"", "\"mixtral-8x7b\""});
  folder.write("short.json", R"({"model": "mixtral-8x7b", "rows": 1, "layers": [[1)");
  expect_failure(with("mixtral-8x7b", folder.file("short.json")), 1,
                 {"short.json", "not valid JSON", "column 51"});
  folder.write("empty.json", R"({"model": "mixtral-8x7b", "rows": 1, "layers": []})");
  expect_failure(with("mixtral-8x7b", folder.file("empty.json")), 1, {"empty.json", "no counts"});
}

/// LIA section 7.1, where GPU and CPU share a layer of a dense model otherwise.
TEST(PlanCliTest, ALayerCutIntoExpertsKeepsItsFfnOnTheCpu) {
  const Arguments point = {
      "--model", "opt-175b", "--policy",       "lia", "--policy-option", "choose=equation-1",
      "--batch", "1280",     "--input-tokens", "32",  "--output-tokens", "8"};
  const json dense = plan_json(point)[0];
  EXPECT_EQ(dense["decode"]["placement"], "011000");
  for (const char* cut : {"2", "4", "8:1", "16"}) {
    const json experts = plan_json(point + Arguments{"--experts", cut})[0];
    EXPECT_EQ(experts["decode"]["placement"], "011011") << cut;
  }
  EXPECT_EQ(plan_json(point + Arguments{"--experts", "8:8"})[0]["decode"]["placement"], "011000");
}

TEST(PlanCliTest, WrongCutsAreSaid) {
  const auto with = [](const std::string& model, const std::string& cut) {
    return plan({"--model", model, "--policy", "lia", "--experts", cut});
  };
  for (const char* cut : {"0", "4:5", "4:0", "4:", ":4", "x", "4097", "2:1:1"})
    expect_failure(with("opt-30b", cut), 2, {"--experts", cut, "N:K"});
  expect_failure(with("opt-30b", "5"), 2, {"--experts 5", "28672", "does not divide by 5"});
  expect_failure(with("mixtral-8x7b", "2"), 2, {"mixtral-8x7b has 8 experts"});
  expect_failure(with("tiny", "2"), 2, {"--experts is for shapes", "tiny"});
}

// ---- Mistakes

TEST(PlanCliTest, UnknownNamesAreSaidWithTheNearest) {
  expect_failure(plan({"--model", "opt-30x"}), 1, {"opt-30x", "known are opt-30b"});
  expect_failure(plan({"--machine", "spr-a101"}), 1, {"spr-a101", "known are spr-a100"});
  expect_failure(plan({"--policy", "lai"}), 1, {"lai", "lia"});
  expect_failure(plan({"--bach", "3"}), 2, {"--bach", "--batch"});
  expect_failure(plan({"--model", "/nonexistent/model"}), 1, {"/nonexistent/model"});
  expect_failure(plan({"--machine", "/nonexistent/machine.json"}), 1,
                 {"/nonexistent/machine.json"});
  expect_failure(plan({"stray"}), 2, {"stray"});
}

TEST(PlanCliTest, WrongValuesAreSaid) {
  expect_failure(plan({"--batch", "0"}), 2, {"--batch 0", "from 1"});
  expect_failure(plan({"--batch", "1,,2"}), 2, {"--batch 1,,2", "like 1,8,64, or max"});
  expect_failure(plan({"--batch", "1,maximum"}), 2, {"--batch 1,maximum", "or max"});
  expect_failure(plan({"--input-tokens", "max"}), 2, {"--input-tokens max", "like 1,8,64"});
  expect_failure(plan({"--batch"}), 2, {"--batch", "missing"});
  expect_failure(plan({"--input-tokens", "many"}), 2, {"--input-tokens many"});
  expect_failure(plan({"--output-tokens", "0"}), 2, {"--output-tokens 0"});
  expect_failure(plan({"--weight-bits", "3"}), 2, {"--weight-bits 3: expected 16 or 4.5"});
  expect_failure(plan({"--model", "opt-30b,"}), 2, {"--model opt-30b,"});
  expect_failure(plan({"--output-format", "xml"}), 2, {"xml", "json"});
  expect_failure(plan({"--json", "--csv"}), 2, {"enough"});
}

TEST(PlanCliTest, LengthsBeyondTheModelsPositionsAreSaid) {
  EXPECT_EQ(plan({"--input-tokens", "2016", "--output-tokens", "33"}).exit_code, 0);
  expect_failure(plan({"--input-tokens", "2016", "--output-tokens", "34"}), 1,
                 {"34 tokens out after 2016 in, expected at most 33"});
  const CliResult result = plan({"--input-tokens", "512,2049", "--output-tokens", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(json::parse(result.out)[1]["problem"],
            "2049 tokens in, expected at most the model's 2048 positions");
}

TEST(PlanCliTest, PolicyOptionsNeedAPolicyThatHasThem) {
  expect_failure(plan({"--policy-option", "opt1=on"}), 2, {"--policy-option needs --policy"});
  expect_failure(plan({"--policy", "lia", "--policy-option", "opt1"}), 2, {"opt1", "key=value"});
  expect_failure(plan({"--policy", "lia", "--policy-option", "opt4=on"}), 2,
                 {"opt4", "it has opt1"});
  expect_failure(plan({"--policy", "lia", "--policy-option", "opt1=2"}), 1,
                 {"opt1=2: expected one of on, off"});
}

TEST(PlanCliTest, NarrowWeightsNeedADequantisationRate) {
  expect_failure(plan({"--policy", "lia", "--weight-bits", "4.5"}), 1,
                 {"spr-a100", "dequantize_gb_per_s"});
  const json point = plan_json({"--model", "opt-175b", "--machine", "icelake-a100-memorymode",
                                "--policy", "helm", "--weight-bits", "4.5"})[0];
  EXPECT_EQ(point["decode"]["placement"], "000000");
}

// ---- Maps

TEST(PlanCliTest, MapsAreWrittenAndShown) {
  const TemporaryFolder folder;
  const CliResult svg = plan({"--model", "opt-175b", "--policy", "lia", "--machine",
                              "spr-a100,spr-h100", "--map", folder.file("map.svg")});
  EXPECT_EQ(svg.exit_code, 0) << svg.err;
  const std::string drawn = testing::content_of(folder.file("map.svg"));
  expect_contains(drawn, {"<?xml", "<svg"});
  EXPECT_TRUE(drawn.ends_with("</svg>\n"));
  expect_contains(svg.out, {"opt-175b on spr-a100, prefill", "opt-175b on spr-h100, decode",
                            "111111: all on the CPU", "011000: qk, sv on the CPU"});
  EXPECT_EQ(plan({"--policy", "lia", "--map", folder.file("map.png")}).exit_code, 0);
  const std::string png = testing::content_of(folder.file("map.png"));
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
}

TEST(PlanCliTest, MapsAsJsonAgreeWithTheirText) {
  const TemporaryFolder folder;
  const Arguments asked = {"--model",   "opt-175b", "--policy", "lia",
                           "--machine", "spr-a100", "--map",    folder.file("map.svg")};
  const json maps = plan_json(asked);
  ASSERT_EQ(maps.size(), 1U);
  const json& map = maps[0];
  EXPECT_EQ(map["model"], "opt-175b");
  EXPECT_EQ(map["machine"], "spr-a100");
  ASSERT_EQ(map["decode"].size(), map["input_tokens"].size());
  std::map<std::string, std::string> meaning;  // placements by letter
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(plan(asked).out)) {
    if (line.size() > 10 && line.substr(1, 2) == "  " && line[9] == ':')
      meaning[line.substr(0, 1)] = line.substr(3, 6);
    if (line.size() == 7 + map["batches"].size()) rows.push_back(line.substr(7));
  }
  const std::size_t height = map["input_tokens"].size();
  ASSERT_EQ(rows.size(), 2 * height);
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < map["batches"].size(); ++x) {
      EXPECT_EQ(map["prefill"][y][x], meaning[rows[height - 1 - y].substr(x, 1)]);
      EXPECT_EQ(map["decode"][y][x], meaning[rows[2 * height - 1 - y].substr(x, 1)]);
    }
  }
  EXPECT_EQ(map["batches"].front(), 1);
  EXPECT_EQ(map["batches"].back(), 2048);
}

TEST(PlanCliTest, ExplanationsAsJsonSayWhatTheTextSays) {
  const Arguments asked = {"--model", "opt-30b", "--machine", "spr-a100", "--policy",
                           "lia",     "--batch", "8",         "--explain"};
  const std::string text = plan(asked).out;
  const json points = plan_json(asked);
  ASSERT_EQ(points.size(), 1U);
  const json& point = points[0];
  const json& explain = point["explain"];
  for (const char* phase : {"prefill", "decode"}) {
    const json& flip = explain["flip_points"][phase];
    expect_contains(
        text, {"flip point of " + std::string(phase) + ": " + flip["from"].get<std::string>() +
               " -> " + flip["to"].get<std::string>() + " at B"});
    expect_contains(text, {" = " + std::to_string(flip["at"].get<int>()) + "\n"});
  }
  ASSERT_EQ(explain["what_if"].size(), 4U);
  EXPECT_EQ(explain["what_if"][0]["with"], "this machine");
  EXPECT_EQ(explain["what_if"][0]["latency_s"], point["latency_s"]);
  EXPECT_EQ(explain["what_if"][0]["tpot_s"], point["tpot_s"]);
  for (const json& each : explain["what_if"]) {
    expect_contains(text, {each["with"]});
    EXPECT_LE(each["latency_s"], point["latency_s"]);
    EXPECT_TRUE(is_placement(each["decode_placement"]));
  }
  EXPECT_EQ(explain["faster_on_one_device"].is_null(),
            text.find("offloading is slower") == std::string::npos);
  EXPECT_FALSE(plan_json({"--model", "opt-30b"})[0].contains("explain"));
}

TEST(PlanCliTest, MapsThatCannotBeAreSaid) {
  expect_failure(plan({"--policy", "lia", "--map", "/nonexistent/map.svg"}), 1,
                 {"cannot write /nonexistent/map.svg"});
  expect_failure(plan({"--policy", "lia", "--map", "map.pdf"}), 2, {"map.pdf", ".svg or .png"});
  expect_failure(plan({"--map", "map.svg"}), 2, {"--map", "--policy"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--csv"}), 2, {"--csv", "--map"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--explain"}), 2,
                 {"--explain", "--map"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--batch", "4"}), 2,
                 {"--batch", "--map"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--parameters-tier", "cxl"}), 2,
                 {"--parameters-tier", "--map"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--kv-tier", "cxl"}), 2,
                 {"--kv-tier", "--map"});
}

// ---- Plans for the CPU's cores

const Arguments on_two_sockets = {"--model",     "llama-160m", "--machine",
                                  "xeon-6151-2", "--policy",   "cpu-only"};

json cpu_plan_json(const std::string& name) {
  return plan_json(on_two_sockets + Arguments{"--cpu-plan", name})[0]["cpu_plan"];
}

TEST(PlanCliTest, CpuPlansArePredicted) {
  const json interleaved = cpu_plan_json("interleaved");
  const json by_node = cpu_plan_json("static");
  const json found = cpu_plan_json("auto");
  ASSERT_EQ(interleaved["decode"]["groups"].size(), 1U);
  EXPECT_EQ(interleaved["decode"]["groups"][0]["cores"].size(), 36U);
  ASSERT_EQ(by_node["decode"]["groups"].size(), 2U);
  EXPECT_EQ(by_node["decode"]["groups"][1]["numa_node"], 1);
  const auto seconds = [](const json& plan, const char* phase) {
    return plan[phase]["predicted_s"].get<double>();
  };
  EXPECT_LT(seconds(by_node, "decode"), seconds(interleaved, "decode"));
  for (const char* phase : {"prefill", "decode"}) {
    EXPECT_LE(seconds(found, phase), seconds(by_node, phase)) << phase;
    EXPECT_LE(seconds(found, phase), seconds(interleaved, phase)) << phase;
    EXPECT_TRUE(found[phase]["measured_s"].is_null());
  }
  // Two nodes read at 102.4 GB/s each, all that memory gives; 12 layers have 6 rounds each and the
  // head one, of 36 threads and 3.2 us.
  const double decode_s = seconds(by_node, "decode");
  const double share = by_node["decode"]["memory_share"];
  EXPECT_NEAR(share * decode_s + 73 * 3.2e-6, decode_s, 1e-9);
  EXPECT_GT(share, 0.5);
  EXPECT_LT(share, 1);
}

/// The machine that policies plan for computes by the CPU plan.
TEST(PlanCliTest, CpuPlanIsInWhatThePlanPredicts) {
  const auto tpot_s = [](const Arguments& more) {
    return plan_json(on_two_sockets + more)[0]["tpot_s"].get<double>();
  };
  const double by_node = tpot_s({"--cpu-plan", "static"});
  EXPECT_LT(by_node, tpot_s({"--cpu-plan", "interleaved"}));
  EXPECT_NEAR(by_node, cpu_plan_json("static")["decode"]["predicted_s"].get<double>(),
              0.25 * by_node);
}

/// Also where products and attention meet different limits.
TEST(PlanCliTest, TheFastestCpuPlanIsNoSlowerThanNamedOnes) {
  for (const char* machine : {"xeon-6230-2", "epyc-7h12-2", "kunpeng-920-4"}) {
    for (const char* batch : {"1", "32", "128"}) {
      const auto tpot_s = [&](const char* name) {
        return plan_json({"--model", "sheared-llama-1.3b", "--machine", machine, "--policy",
                          "cpu-only", "--batch", batch, "--cpu-plan", name})[0]["tpot_s"]
            .get<double>();
      };
      const double found = tpot_s("auto");
      for (const char* name : {"static", "interleaved"})
        EXPECT_LE(found, 1.01 * tpot_s(name)) << machine << ", " << batch << " beside " << name;
    }
  }
}

TEST(PlanCliTest, WhatPlanPrintsIsAPlan) {
  const TemporaryFolder folder;
  const std::string path = folder.file("plan.json");
  const Arguments found = on_two_sockets + Arguments{"--cpu-plan", "auto", "--json"};
  std::ofstream(path) << plan(found).out;
  EXPECT_EQ(cpu_plan_json(path)["decode"]["groups"], cpu_plan_json("auto")["decode"]["groups"]);
}

TEST(PlanCliTest, CpuPlansMayBeGivenAgain) {
  const TemporaryFolder folder;
  const std::string path = folder.file("plan.json");
  const json found = cpu_plan_json("auto");
  std::ofstream(path) << json{{"cpu_plan", found}};
  EXPECT_EQ(cpu_plan_json(path), found);
  expect_failure(plan({"--model", "llama-160m", "--machine", "xeon-6230-2", "--policy", "cpu-only",
                       "--cpu-plan", path}),
                 1, {path, "a plan of another machine"});
}

TEST(PlanCliTest, CpuPlansAreToldAtLength) {
  const CliResult result = plan(on_two_sockets + Arguments{"--cpu-plan", "static"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out,
                  {"time to first token", "CPU plan static, of 2 packages, 36 cores",
                   "of the memory's limit; 36 cores in 2 groups", "0-34 by 2", "36-70 by 2"});
  EXPECT_EQ(plan(on_two_sockets).out.find("CPU plan"), std::string::npos);
}

TEST(PlanCliTest, CpuPlansThatCannotBeAreSaid) {
  expect_failure(plan({"--policy", "cpu-only", "--cpu-plan", "auto"}), 1,
                 {"--cpu-plan", "spr-a100 does not describe its CPU's cores", "cpu.topology"});
  expect_failure(plan(on_two_sockets + Arguments{"--cpu-plan", "statik"}), 1,
                 {"--cpu-plan statik", "no such file", "auto, interleaved, static"});
  expect_failure(plan(on_two_sockets + Arguments{"--cpu-plan", "auto", "--csv"}), 2,
                 {"--cpu-plan", "--csv"});
  expect_failure(plan(on_two_sockets + Arguments{"--cpu-plan", "auto", "--batch", "1,8"}), 2,
                 {"--cpu-plan", "a single plan"});
  expect_failure(plan({"--machine", "this", "--cpu-plan", "auto"}), 2,
                 {"--cpu-plan", "--machine with a profile", "sluice tune"});
  expect_failure(plan({"--map", "map.svg", "--policy", "lia", "--cpu-plan", "auto"}), 2,
                 {"--cpu-plan", "--map"});
}

}  // namespace
}  // namespace sluice
