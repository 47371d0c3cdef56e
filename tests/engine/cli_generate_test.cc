// The program from end to end: what it writes, where, and what must not change it.
#include <gtest/gtest.h>
#include <sched.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "models/tokenizer.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::json_lines;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;

CliResult run_well(const Arguments& arguments) {
  CliResult result = run_cli(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

TEST(CliHelpTest, IsThereForEveryCommand) {
  const std::vector<Arguments> runs = {{"--help"},
                                       {"-h"},
                                       {"help"},
                                       {"bench", "--help"},
                                       {"generate", "--help"},
                                       {"generate", "-h"},
                                       {"info", "--help"},
                                       {"make-model", "--help"},
                                       {"tokenize", "--help"}};
  for (const Arguments& arguments : runs) {
    const CliResult result = run_well(arguments);
    EXPECT_NE(result.out.find("Usage: sluice"), std::string::npos) << result.out;
    EXPECT_EQ(result.err, "");
  }
}

TEST(CliHelpTest, HelpOfACommandIsItsOwn) {
  for (const char* command : {"generate", "plan", "trace"})
    EXPECT_EQ(run_well({"help", command}).out, run_well({command, "--help"}).out);
  const CliResult wrong = run_cli({"help", "plann"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("did you mean plan?"), std::string::npos) << wrong.err;
}

TEST(CliHelpTest, LettersStandForTheOptionsThatPeopleTypeMost) {
  const Arguments rest = {"--dtype", "f32", "-q"};
  EXPECT_EQ(
      run_well(Arguments{"generate", "-m", "tiny", "-p", "Once", "-n", "5", "-t", "1"} + rest).out,
      run_well(Arguments{"generate", "--model", "tiny", "--prompt", "Once", "--max-tokens", "5",
                         "--threads", "1"} +
               rest)
          .out);
  // Not the letter p with the text "rompt".
  const CliResult wrong = run_cli({"generate", "-prompt", "Once"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("did you mean --prompt?"), std::string::npos) << wrong.err;
}

TEST(CliHelpTest, VersionIsOneLine) {
  const CliResult result = run_well({"--version"});
  EXPECT_TRUE(result.out.starts_with("sluice ")) << result.out;
  EXPECT_EQ(testing::lines_of(result.out).size(), 1U);
}

TEST(CliHelpTest, ManAndCompletionNameEveryCommandsOptions) {
  const std::string man = run_well({"man"}).out;
  const std::string bash = run_well({"completion", "bash"}).out;
  const std::string zsh = run_well({"completion", "zsh"}).out;
  for (const char* option : {"max-tokens", "gantt", "memory", "shape", "policy-option"}) {
    EXPECT_NE(bash.find(fmt::format("--{}", option)), std::string::npos) << option;
    EXPECT_NE(zsh.find(fmt::format("'--{}[", option)), std::string::npos) << option;
  }
  for (const char* part : {".SH generate", "\\-\\-max\\-tokens", ".SH trace"})
    EXPECT_NE(man.find(part), std::string::npos) << part;
  for (const Arguments& wrong : {Arguments{"completion"}, {"completion", "fish"}, {"man", "x"}})
    EXPECT_EQ(run_cli(wrong).exit_code, 2);
}

TEST(CliInfoTest, DescribesTheMachine) {
  const CliResult result = run_well({"info"});
  for (const char* part : {"CPU", "cores", "memory node", "available", "StarPU"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
}

TEST(CliInfoTest, CountsOnlyTheProcessorsThatItWasStartedOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(last), &all)) --last;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(last), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const CliResult info = run_well({"info"});
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  for (const char* part : {"1 usable, 1 hardware threads", "1 by default"})
    EXPECT_NE(info.out.find(part), std::string::npos) << info.out;
}

TEST(CliInfoTest, JsonHasTheContractsFields) {
  const json info = json::parse(run_well({"info", "--json"}).out);
  const json& cuda = info.at("cuda");
  EXPECT_TRUE(cuda.at("compiled").is_boolean());
  EXPECT_TRUE(cuda.at("architectures").is_array());
  EXPECT_EQ(cuda.at("architectures").empty(), !cuda.at("compiled").get<bool>());
  EXPECT_TRUE(cuda.at("devices").is_array());
  EXPECT_TRUE(info.at("cpu").at("isa").is_string());
  EXPECT_TRUE(info.at("cpu").at("onednn_isa").is_string());
  std::uint64_t ddr_bytes = 0;
  for (const json& node : info.at("memory_nodes")) {
    if (node.at("tier") != "ddr") continue;
    EXPECT_TRUE(node.at("numa_node").is_number_integer());
    EXPECT_GT(node.at("cpus").get<int>(), 0);
    ddr_bytes += node.at("bytes").get<std::uint64_t>();
  }
  EXPECT_GT(ddr_bytes, std::uint64_t{1} << 20);
}

class CliPromptTest : public ::testing::Test {
 protected:
  const Arguments run = {"generate", "--dtype", "f32",          "-q",
                         "--prompt", prompt,    "--max-tokens", "30"};
  static constexpr const char* prompt = "Once upon a time";
};

TEST_F(CliPromptTest, TextFollowsThePrompt) {
  const CliResult result = run_well(run);
  EXPECT_TRUE(result.out.starts_with(prompt)) << result.out;
  EXPECT_TRUE(result.out.ends_with('\n'));
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(run_well(run + Arguments{"--no-echo"}).out, result.out.substr(std::strlen(prompt)));
}

/// In a terminal both streams meet.
TEST_F(CliPromptTest, WhatIsSaidOfTheRunFollowsItsText) {
  const std::string command = "'" + testing::sluice_program() +
                              "' generate --prompt 'Once upon a time' --temperature 0 -n 20";
  const auto out_of = [](const std::string& line) {
    CliProcess process("/usr/bin/env", {"bash", "-c", line});
    return process.wait().out;
  };
  const std::string text = out_of(command + " 2>/dev/null");
  const std::string all = out_of(command + " 2>&1");
  ASSERT_TRUE(text.ends_with("\n")) << text;
  EXPECT_TRUE(all.starts_with(text)) << all;
  EXPECT_GT(all.size(), text.size());
}

TEST_F(CliPromptTest, GreedyTextIsTheSameEveryTimeAndWithAnyThreads) {
  const std::string text = run_well(run).out;
  for (const char* threads : {"1", "2", "3"}) {
    EXPECT_EQ(run_well(run + Arguments{"--threads", threads}).out, text) << threads;
  }
  EXPECT_EQ(run_well(run + Arguments{"--attention", "split"}).out, text);
  EXPECT_EQ(run_well(run + Arguments{"--no-fuse"}).out, text);
  EXPECT_EQ(run_well(run + Arguments{"--threads", "2", "--cpu-plan", "static"}).out, text);
}

TEST_F(CliPromptTest, SeedReproducesTheText) {
  const Arguments sampled = run + Arguments{"--temperature", "1.5"};
  const std::string text = run_well(sampled + Arguments{"--seed", "7"}).out;
  EXPECT_EQ(run_well(sampled + Arguments{"--seed", "7", "--threads", "1"}).out, text);
  EXPECT_NE(run_well(sampled + Arguments{"--seed", "8"}).out, text);
}

TEST_F(CliPromptTest, StopTextEndsTheText) {
  const std::string text = run_well(run).out;
  const std::size_t period = text.find('.');
  ASSERT_NE(period, std::string::npos) << text;
  EXPECT_EQ(run_well(run + Arguments{"--stop", ".", "--stop", "no such text"}).out,
            text.substr(0, period) + "\n");
}

TEST_F(CliPromptTest, AnyTextComesOutAsUtf8) {
  const Arguments wild = {"generate",     "--dtype",     "f32",
                          "-q",           "--prompt",    "caf\xC3\xA9 \xF0\x9F\x98\x80",
                          "--max-tokens", "300",         "--temperature",
                          "100",          "--ignore-eos"};
  for (const char* seed : {"1", "2", "3"}) {
    const CliResult result = run_well(wild + Arguments{"--seed", seed});
    EXPECT_EQ(find_invalid_utf8(result.out), std::nullopt) << seed;
  }
}

TEST(CliCardTest, EmbeddedModelTellsTheStoryOfItsCard) {
  std::ifstream file(SLUICE_TEST_DATA_DIR "/../models/tiny/card.json");
  if (!file) GTEST_SKIP() << "models/tiny/card.json is not there";
  const json card = json::parse(file);
  const std::string prompt = card.at("prompt");
  const auto tokens = card.at("greedy_token_ids").get<std::vector<std::int32_t>>();
  const Arguments run = {"generate",    "--dtype",      "f32",
                         "-q",          "--max-tokens", std::to_string(tokens.size()),
                         "--ignore-eos"};

  EXPECT_EQ(run_well(run + Arguments{"--prompt", prompt, "--no-echo"}).out,
            card.at("greedy_text").get<std::string>() + "\n");

  const TemporaryFolder folder;
  folder.write("prompts.jsonl",
               json({{"prompt", prompt}}).dump() + "\n" +
                   json({{"prompt_token_ids", card.at("prompt_token_ids")}}).dump());
  for (const json& line :
       json_lines(run_well(run + Arguments{"--prompts", folder.file("prompts.jsonl")}).out)) {
    EXPECT_EQ(line.at("token_ids").get<std::vector<std::int32_t>>(), tokens);
  }
}

/// Prompts of the embedded model that differ in length and in what they give.
class CliPromptsTest : public ::testing::Test {
 protected:
  CliPromptsTest() { write_prompts(9); }

  void write_prompts(int count) {
    static const std::vector<std::string> beginnings = {
        "Once upon a time", "The dog", "One sunny day, Mia and Ben went to the park. They", "Tom"};
    std::string text;
    ids.clear();
    prompts.clear();
    for (int i = 0; i < count; ++i) {
      ids.push_back(fmt::format("story-{}", (i * 7) % count));
      prompts.push_back(
          fmt::format("{} {}", beginnings[static_cast<std::size_t>(i) % beginnings.size()], i));
      text += json({{"id", ids.back()}, {"prompt", prompts.back()}}).dump() + "\n";
    }
    folder.write("prompts.jsonl", text);
  }

  Arguments run(const std::string& tokens = "24", const std::string& batch = "3") const {
    return {
        "generate", "--dtype", "f32",          "-q",   "--prompts",   folder.file("prompts.jsonl"),
        "--batch",  batch,     "--max-tokens", tokens, "--ignore-eos"};
  }
  Arguments to(const std::string& name) const { return {"--output", folder.file(name)}; }
  std::string output(const std::string& name) const { return content_of(folder.file(name)); }

  TemporaryFolder folder;
  std::vector<std::string> ids;
  std::vector<std::string> prompts;
};

TEST_F(CliPromptsTest, LinesAreInInputOrderWithTheirIds) {
  const CliResult result = run_well(run() + to("out.jsonl"));
  EXPECT_EQ(result.out, "");
  const std::vector<json> lines = json_lines(output("out.jsonl"));
  ASSERT_EQ(lines.size(), ids.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("id"), ids[i]);
    EXPECT_EQ(lines[i].at("prompt"), prompts[i]);
    EXPECT_FALSE(lines[i].at("text").get<std::string>().empty());
    EXPECT_EQ(lines[i].at("token_ids").size(), 24U);
    EXPECT_EQ(lines[i].at("finish_reason"), "length");
    EXPECT_EQ(lines[i].size(), 5U);
  }
}

TEST_F(CliPromptsTest, BatchAndThreadsChangeNothing) {
  const std::string alone = run_well(run("24", "1")).out;
  EXPECT_EQ(json_lines(alone).size(), ids.size());
  for (const char* batch : {"3", "7", "100"}) {
    run_well(run("24", batch) + to(fmt::format("{}.jsonl", batch)));
    EXPECT_EQ(output(fmt::format("{}.jsonl", batch)), alone) << "batch " << batch;
  }
  for (const char* threads : {"1", "2", "3"}) {
    EXPECT_EQ(run_well(run() + Arguments{"--threads", threads}).out, alone) << threads;
  }
}

TEST_F(CliPromptsTest, WithoutABatchAsManyRunAsFitUpTo64) {
  const auto without_batch = [&] {
    Arguments all = run("2");
    const auto batch = std::find(all.begin(), all.end(), "--batch");
    all.erase(batch, batch + 2);
    std::erase(all, "-q");
    return run_well(all);
  };
  const CliResult nine = without_batch();
  EXPECT_EQ(nine.out, run_well(run("2", "1")).out);
  EXPECT_NE(nine.err.find("up to 9 prompts at once"), std::string::npos) << nine.err;
  write_prompts(71);
  const CliResult many = without_batch();
  EXPECT_NE(many.err.find("up to 64 prompts at once"), std::string::npos) << many.err;

  // As cli_errors_test asks for three in so little memory, and is refused.
  folder.write("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n");
  const CliResult little = run_well({"generate", "--prompts", folder.file("prompts.jsonl"),
                                     "--dtype", "f32", "--ddr", "17MiB", "--max-tokens", "500"});
  EXPECT_NE(little.err.find("up to 2 prompts at once"), std::string::npos) << little.err;
}

TEST_F(CliPromptsTest, ContextBoundsPromptAndOutputTogether) {
  const Arguments asked = {"generate", "--ignore-eos", "-q", "-n", "30", "-p", "Once upon a time"};
  const auto stats = [&](const Arguments& more) {
    const std::string path = folder.file("stats");
    const CliResult result = run_cli(asked + more + Arguments{"--stats", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(testing::content_of(path));
  };
  const std::int64_t prompt = stats({})["prompt_tokens"];
  EXPECT_EQ(stats({})["generated_tokens"], 30);
  EXPECT_EQ(stats({"-c", std::to_string(prompt + 7)})["generated_tokens"], 7);
  EXPECT_EQ(stats({"-c", "400"})["generated_tokens"], 30);
  expect_failure(
      run_cli(asked + Arguments{"--context", std::to_string(prompt)}), 1,
      {"--context is " + std::to_string(prompt), "at least " + std::to_string(prompt + 1)});
  expect_failure(run_cli(asked + Arguments{"-c", "0"}), 2, {"--context 0"});
}

TEST_F(CliPromptsTest, SampledLinesDependOnTheSeedAlone) {
  const Arguments sampled = {"--temperature", "1.2", "--seed", "5"};
  const std::string alone = run_well(run("24", "1") + sampled).out;
  EXPECT_EQ(run_well(run("24", "7") + sampled).out, alone);
  EXPECT_NE(run_well(run("24", "7")).out, alone);
}

TEST_F(CliPromptsTest, TokenIdsThatCutACharacterAreFine) {
  folder.write("prompts.jsonl", [] {
    std::string text;  // every token alone: among them are those of single bytes
    for (int id = 0; id < 300; ++id) text += fmt::format("{{\"prompt_token_ids\": [{}]}}\n", id);
    return text;
  }());
  const std::string out = run_well(run("1", "50")).out;
  EXPECT_EQ(json_lines(out).size(), 300U);
  EXPECT_EQ(find_invalid_utf8(out), std::nullopt);
}

TEST_F(CliPromptsTest, StatsHaveTheContractsFields) {
  run_well(run() + to("out.jsonl") + Arguments{"--stats", folder.file("stats.json")});
  const json stats = json::parse(output("stats.json"));
  EXPECT_GT(stats.at("prompt_tokens").get<std::int64_t>(), 9);
  EXPECT_EQ(stats.at("generated_tokens").get<std::int64_t>(), 9 * 24);
  for (const char* field : {"ttft_s", "tpot_s", "tokens_per_s"}) {
    EXPECT_GT(stats.at(field).get<double>(), 0) << field;
  }
  EXPECT_GT(stats.at("peak_bytes").at("ddr").get<std::int64_t>(), 1000000);
  EXPECT_EQ(stats.at("finish_reason"), json(std::vector<std::string>(9, "length")));
  EXPECT_EQ(stats.at("policy"), "cpu-only");
  EXPECT_GT(stats.at("placements").at("prefill").at("111111").get<std::int64_t>(), 0);
}

TEST_F(CliPromptsTest, StatsCountTheLayersOfEachPlacement) {
  run_well({"generate", "--prompt", "Once", "--max-tokens", "5", "--ignore-eos", "-q", "--stats",
            folder.file("stats.json")});
  const json placements = json::parse(output("stats.json")).at("placements");
  // A prompt and four further tokens, each through all layers, all on the CPU.
  const auto layers = placements.at("prefill").at("111111").get<std::int64_t>();
  EXPECT_GT(layers, 1);
  EXPECT_EQ(placements,
            json({{"prefill", {{"111111", layers}}}, {"decode", {{"111111", 4 * layers}}}}));
}

TEST_F(CliPromptsTest, SummaryIsOnStandardErrorOnly) {
  Arguments loud = run();
  std::erase(loud, "-q");
  const CliResult result = run_well(loud);
  EXPECT_EQ(json_lines(result.out).size(), ids.size());
  for (const char* part :
       {"generated 216 tokens", "tokens/s", "time to first token", "peak memory"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }
}

TEST_F(CliPromptsTest, OverwriteReplaces) {
  folder.write("out.jsonl", "old\n");
  run_well(run() + to("out.jsonl") + Arguments{"--overwrite"});
  EXPECT_EQ(json_lines(output("out.jsonl")).size(), ids.size());
}

TEST_F(CliPromptsTest, TwoRunsAtOnceDoNotDisturbEachOther) {
  const std::string expected = run_well(run("100")).out;
  CliProcess first(run("100"));
  CliProcess second(run("100") + to("out.jsonl"));
  EXPECT_EQ(first.wait().out, expected);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(output("out.jsonl"), expected);
}

TEST(CliMakeModelTest, ModelRunsOnTokenIds) {
  const TemporaryFolder folder;
  const std::string model = folder.file("opt");
  const CliResult made = run_well({"make-model", "--shape", "opt-125m", "--out", model});
  EXPECT_EQ(made.err, "");
  folder.write("prompts.jsonl", "{\"id\": \"a\", \"prompt_token_ids\": [2, 100, 200]}\n");
  const std::vector<json> lines =
      json_lines(run_well({"generate", "--model", model, "--prompts", folder.file("prompts.jsonl"),
                           "--max-tokens", "3", "--ignore-eos"})
                     .out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("id"), "a");
  EXPECT_EQ(lines[0].at("token_ids").size(), 3U);
  EXPECT_EQ(lines[0].at("text"), "");
}

/// Runs that take a few seconds and are broken off.
class CliResumeTest : public CliPromptsTest {
 protected:
  CliResumeTest() { write_prompts(24); }
  Arguments long_run(const std::string& name) const { return run("200", "2") + to(name); }
  Arguments resumed(const std::string& name) const {
    return long_run(name) + Arguments{"--resume"};
  }

  /// Checks that a file holds whole lines of some prompts; returns how many.
  std::size_t expect_whole_lines(const std::string& name) const {
    const std::string text = output(name);
    EXPECT_TRUE(text.ends_with('\n'));
    std::set<std::string> found;
    for (const json& line : json_lines(text)) {
      EXPECT_EQ(line.at("finish_reason"), "length");
      EXPECT_EQ(line.at("token_ids").size(), 200U);
      EXPECT_TRUE(found.insert(line.at("id")).second);
    }
    return found.size();
  }
};

TEST_F(CliResumeTest, InterruptedOrKilledRunsAreCompleted) {
  run_well(long_run("whole.jsonl"));
  const std::string whole = output("whole.jsonl");
  ASSERT_EQ(json_lines(whole).size(), ids.size());
  {
    SCOPED_TRACE("Ctrl-C");
    CliProcess process(long_run("interrupted.jsonl"));
    testing::wait_for_lines(folder.file("interrupted.jsonl"), 3);
    process.send(SIGINT);
    EXPECT_EQ(process.wait().exit_code, 130);
    const std::size_t finished = expect_whole_lines("interrupted.jsonl");
    EXPECT_GE(finished, 3U);
    EXPECT_LT(finished, ids.size());
    run_well(resumed("interrupted.jsonl"));
    EXPECT_EQ(output("interrupted.jsonl"), whole);
    run_well(resumed("interrupted.jsonl"));  // nothing is left to do
    EXPECT_EQ(output("interrupted.jsonl"), whole);
  }
  {
    SCOPED_TRACE("killed");
    CliProcess process(long_run("killed.jsonl"));
    testing::wait_for_lines(folder.file("killed.jsonl"), 3);
    process.send(SIGKILL);
    EXPECT_EQ(process.wait().exit_code, -1);
    EXPECT_LT(expect_whole_lines("killed.jsonl"), ids.size());
    std::ofstream(folder.file("killed.jsonl"), std::ios::app) << R"({"finish_reason":"len)";
    CliProcess again(resumed("killed.jsonl"));  // and killed once more
    testing::wait_for_lines(folder.file("killed.jsonl"), 6);
    again.send(SIGKILL);
    again.wait();
    run_well(resumed("killed.jsonl"));
    EXPECT_EQ(output("killed.jsonl"), whole);
  }
}

TEST_F(CliResumeTest, SecondRunToTheSameOutputIsRefused) {
  CliProcess first(long_run("out.jsonl"));
  testing::wait_for_lines(folder.file("out.jsonl"), 1);
  expect_failure(run_cli(long_run("out.jsonl")), 1, {"out.jsonl exists"});
  expect_failure(run_cli(resumed("out.jsonl")), 1, {"out.jsonl", "another run"});
  expect_failure(run_cli(long_run("out.jsonl") + Arguments{"--overwrite"}), 1,
                 {"out.jsonl", "another run"});
  first.send(SIGINT);
  EXPECT_EQ(first.wait().exit_code, 130);
  EXPECT_GE(expect_whole_lines("out.jsonl"), 1U);
}

TEST_F(CliResumeTest, InterruptedLinesOnStandardOutputAreWhole) {
  CliProcess process(run("200", "2"));
  testing::wait_for_lines(process.output_path(), 1);
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_TRUE(result.out.ends_with('\n'));
  const std::size_t lines = json_lines(result.out).size();
  EXPECT_GE(lines, 1U);
  EXPECT_LT(lines, ids.size());
}

}  // namespace
}  // namespace sluice
