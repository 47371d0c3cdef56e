// Lines of a prompts file with settings of their own: each gives what the same options give.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::Arguments;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::json_lines;
using testing::operator+;
using testing::run_cli;

class CliPromptFieldsTest : public ::testing::Test {
 protected:
  /// Continues the lines; each gets the prompt's text.
  CliResult run(std::vector<json> lines, const Arguments& more = {}) const {
    std::string text;
    for (json& line : lines) {
      if (!line.contains("prompt")) line["prompt"] = "Once upon a time";
      text += line.dump() + "\n";
    }
    folder.write("prompts.jsonl", text);
    return run_cli(
        Arguments{"generate", "--prompts", folder.file("prompts.jsonl"), "--dtype", "f32", "-q"} +
        more);
  }
  std::vector<json> outputs(const std::vector<json>& lines, const Arguments& more = {}) const {
    const CliResult result = run(lines, more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<json> parsed = json_lines(result.out);
    EXPECT_EQ(parsed.size(), lines.size());
    parsed.resize(lines.size());
    for (json& line : parsed) line.erase("id");
    return parsed;
  }

  TemporaryFolder folder;
};

TEST_F(CliPromptFieldsTest, GiveWhatTheSameOptionsGive) {
  const std::vector<std::pair<json, Arguments>> cases = {
      {{{"max_tokens", 5}}, {"--max-tokens", "5"}},
      {{{"max_completion_tokens", 6}}, {"--max-tokens", "6"}},
      {{{"temperature", 0.8}, {"seed", 3}}, {"--temperature", "0.8", "--seed", "3"}},
      {{{"temperature", 0.8}, {"seed", 4}}, {"--temperature", "0.8", "--seed", "4"}},
      {{{"temperature", 1}, {"top_k", 5}, {"seed", 5}},
       {"--temperature", "1", "--top-k", "5", "--seed", "5"}},
      {{{"temperature", 1}, {"top_p", 0.5}, {"seed", 6}},
       {"--temperature", "1", "--top-p", "0.5", "--seed", "6"}},
      {{{"temperature", 1}, {"min_p", 0.2}, {"seed", 7}},
       {"--temperature", "1", "--min-p", "0.2", "--seed", "7"}},
      {{{"repetition_penalty", 1.3}}, {"--repetition-penalty", "1.3"}},
      {{{"stop", "little"}}, {"--stop", "little"}},
      {{{"stop", {"a ", "girl"}}}, {"--stop", "a ", "--stop", "girl"}},
      {{{"prompt", "The end."}, {"ignore_eos", true}, {"max_tokens", 200}},
       {"--ignore-eos", "--max-tokens", "200"}},
      {{{"min_tokens", 30}, {"max_tokens", 30}}, {"--min-tokens", "30", "--max-tokens", "30"}}};
  std::vector<json> lines;
  lines.reserve(cases.size());
  for (const auto& [fields, options] : cases) lines.push_back(fields);
  const Arguments common = {"--max-tokens", "24"};
  const std::vector<json> together = outputs(lines, common);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    json plain = json::object();
    if (cases[i].first.contains("prompt")) plain["prompt"] = cases[i].first["prompt"];
    Arguments options = cases[i].second;
    if (std::find(options.begin(), options.end(), "--max-tokens") == options.end())
      options = options + common;
    EXPECT_EQ(together[i], outputs({plain}, options).front()) << cases[i].first;
  }
}

TEST_F(CliPromptFieldsTest, ReplaceWhatTheCommandLineSays) {
  const std::vector<json> lines =
      outputs({{{"max_tokens", 4}}, json::object(), {{"stop", "zzz"}}},
              {"--max-tokens", "9", "--stop", "a", "--temperature", "0"});
  const auto plain = [&](const Arguments& options) {
    return outputs({json::object()}, options + Arguments{"--temperature", "0"}).front();
  };
  EXPECT_EQ(lines[0], plain({"--max-tokens", "4", "--stop", "a"}));
  EXPECT_EQ(lines[1], plain({"--max-tokens", "9", "--stop", "a"}));
  EXPECT_EQ(lines[2], plain({"--max-tokens", "9"}));
}

TEST_F(CliPromptFieldsTest, SeveralOutputsAreOneLine) {
  const json sampled = {{"temperature", 1}, {"seed", 8}, {"max_tokens", 12}};
  json three = sampled;
  three["n"] = 3;
  const std::vector<json> lines = outputs({three, sampled});
  ASSERT_EQ(lines[0]["other_outputs"].size(), 2U);
  json first = lines[0];
  first.erase("other_outputs");
  EXPECT_EQ(first, lines[1]) << "the first output is what it is alone";
  EXPECT_NE(lines[0]["other_outputs"][0]["text"], lines[0]["other_outputs"][1]["text"]);
  EXPECT_NE(lines[0]["other_outputs"][0]["text"], lines[0]["text"]);
  // As many at once as --batch says.
  EXPECT_EQ(outputs({three, sampled}, {"--batch", "1"}), lines);
}

TEST_F(CliPromptFieldsTest, ResumeTakesSeveralOutputsForOneFinishedLine) {
  const std::vector<json> lines = {{{"n", 2}, {"temperature", 1}, {"seed", 1}}, json::object()};
  const Arguments to_file = {"--max-tokens", "6", "--output", folder.file("out.jsonl")};
  EXPECT_EQ(run(lines, to_file).exit_code, 0);
  const std::string whole = content_of(folder.file("out.jsonl"));
  EXPECT_EQ(run(lines, to_file + Arguments{"--resume"}).exit_code, 0);
  EXPECT_EQ(content_of(folder.file("out.jsonl")), whole);
}

TEST_F(CliPromptFieldsTest, WrongOnesAreOneLine) {
  const auto refused = [&](const json& line, const std::vector<std::string>& parts,
                           const Arguments& more = {}) {
    expect_failure(run({json::object(), line}, more), 1, parts);
  };
  const std::string place = "prompts.jsonl, line 2";
  refused({{"temperature", "warm"}}, {place, "temperature"});
  refused({{"temperatur", 1}}, {place, "did you mean \"temperature\"?"});
  refused({{"stop_token_ids", {1 << 30}}}, {place, "stop_token_ids", "1073741824"});
  refused({{"min_tokens", 9}, {"max_tokens", 8}}, {place, "min_tokens is 9", "8"});
  refused({{"min_tokens", 9}}, {place, "min_tokens is 9", "5"}, {"--max-tokens", "5"});
}

}  // namespace
}  // namespace sluice
