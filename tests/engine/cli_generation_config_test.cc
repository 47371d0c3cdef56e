// Fields of generation_config.json, and the options that go before them, as Transformers has them.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::json_lines;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;
using Ids = std::vector<std::int32_t>;

/// The embedded model as a folder with a generation_config.json of its own.
class GenerationConfigCliTest : public ::testing::Test {
 protected:
  GenerationConfigCliTest() {
    const std::filesystem::path from = SLUICE_TEST_DATA_DIR "/../models/tiny/model";
    for (const char* name :
         {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::create_symlink(std::filesystem::canonical(from / name),
                                      folder_.path() / name);
    folder_.write("prompts.jsonl",
                  json{{"prompt_token_ids", golden_["prompt_token_ids"]}}.dump() + "\n");
  }

  void configure(const json& fields) const {
    folder_.write("generation_config.json", fields.dump());
  }
  const json& fields_of(const std::string& name) const { return find(name)["generation_config"]; }
  /// As Transformers has them, an end-of-sequence token, with which we end, left out.
  Ids expected(const std::string& name) const {
    const json& one = find(name);
    Ids ids = one["token_ids"].get<Ids>();
    const json eos = one["generation_config"].value("eos_token_id", json());
    const Ids ends = eos.is_array() ? eos.get<Ids>() : eos.is_null() ? Ids{} : Ids{eos.get<int>()};
    if (std::find(ends.begin(), ends.end(), ids.back()) != ends.end()) ids.pop_back();
    return ids;
  }
  CliResult run(const Arguments& more = {}) const {
    return run_cli(Arguments{"generate", "--model", folder_.path(), "--dtype", "f32", "--prompts",
                             folder_.file("prompts.jsonl"), "--max-tokens",
                             std::to_string(golden_["max_new_tokens"].get<int>())} +
                   more);
  }
  json line(const Arguments& more = {}) const {
    const CliResult result = run(Arguments{"-q"} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto lines = json_lines(result.out);
    EXPECT_EQ(lines.size(), 1U) << result.out;
    return lines.empty() ? json() : lines.front();
  }
  Ids ids(const Arguments& more = {}) const { return line(more).at("token_ids").get<Ids>(); }

  const json golden_ = json::parse(content_of(SLUICE_TEST_DATA_DIR "/golden/generation.json"));

 private:
  const json& find(const std::string& name) const {
    for (const json& one : golden_["cases"]) {
      if (one["name"] == name) return one;
    }
    throw std::runtime_error("no case " + name);
  }

  TemporaryFolder folder_;
};

TEST_F(GenerationConfigCliTest, FieldsGiveTransformersTokens) {
  const Ids plain = expected("plain");
  int different = 0;
  for (const json& one : golden_["cases"]) {
    const std::string name = one["name"];
    const json& fields = one["generation_config"];
    configure(fields);
    // Without an EOS in the file we take config.json's, Transformers none.
    const Arguments eos = fields.contains("eos_token_id") ? Arguments{} : Arguments{"--ignore-eos"};
    const json got = line(eos);
    EXPECT_EQ(got.at("token_ids").get<Ids>(), expected(name)) << name;
    EXPECT_EQ(got.at("finish_reason"), "stop") << name;
    different += expected(name) == plain ? 0 : 1;
  }
  EXPECT_GE(different, 12);
}

TEST_F(GenerationConfigCliTest, MinTokensIsTheFieldAsAnOption) {
  configure(fields_of("plain"));
  EXPECT_EQ(ids(), expected("plain"));
  EXPECT_EQ(ids({"--min-tokens", "30"}), expected("min_new_tokens"));
  EXPECT_EQ(ids({"--min-tokens", "17"}), expected("plain"));
  EXPECT_EQ(ids({"--min-tokens", "30", "--repetition-penalty", "1.3"}),
            expected("min_new_tokens_with_repetition_penalty"));
  configure(fields_of("min_new_tokens"));
  EXPECT_EQ(ids({"--min-tokens", "0"}), expected("plain")) << "the option goes before the field";
  expect_failure(run({"--min-tokens", "41"}), 2, {"--min-tokens 41", "0", "40"});
  expect_failure(run({"--min-tokens", "-1"}), 2, {"--min-tokens"});
}

TEST_F(GenerationConfigCliTest, MinTokensKeepsSampledOutputsGoing) {
  configure(json{{"eos_token_id", fields_of("plain")["eos_token_id"]}});
  for (const char* seed : {"1", "2", "3", "4"}) {
    const Arguments sampled = {"--temperature", "0.8", "--seed", seed};
    EXPECT_GE(ids(sampled + Arguments{"--min-tokens", "35"}).size(), 35U) << seed;
    EXPECT_LT(ids(sampled).size(), 35U) << seed;
  }
}

TEST_F(GenerationConfigCliTest, StopTextThatIsASpecialTokenStopsAndIsNotInTheText) {
  configure(fields_of("plain"));
  const json got = line({"--ignore-eos", "--stop", "<|end_of_text|>"});
  EXPECT_EQ(got["token_ids"].get<Ids>(), expected("stop_strings_special"));
  EXPECT_EQ(got["finish_reason"], "stop");
  const std::string text = got["text"];
  EXPECT_EQ(text.find("<|"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with('.')) << text;
  EXPECT_EQ(line()["text"], text) << "as if it had ended by itself";
  EXPECT_EQ(line({"--ignore-eos", "--stop", "_of_"})["text"], text);
  const json part = line({"--ignore-eos", "--stop", ".<|end_of_text|>"});
  EXPECT_EQ(part["text"].get<std::string>() + ".", text);
}

TEST_F(GenerationConfigCliTest, StopTextsThatCannotMatchAreRefused) {
  configure(fields_of("plain"));
  expect_failure(run({"--stop", ""}), 2, {"--stop", "empty"});
  expect_failure(run({"--stop", "\xff"}), 2, {"--stop", "UTF-8"});
  configure({{"stop_strings", {""}}});
  expect_failure(run(), 1, {"generation_config.json", "stop_strings"});
}

TEST_F(GenerationConfigCliTest, FieldsThatAreNotDoneAreWarnedOf) {
  json fields = fields_of("plain");
  fields["num_beams"] = 4;
  fields["typical_p"] = 0.5;
  configure(fields);
  const CliResult greedy = run({"-q"});
  EXPECT_EQ(greedy.exit_code, 0);
  EXPECT_EQ(std::count(greedy.err.begin(), greedy.err.end(), '\n'), 1) << greedy.err;
  for (const char* part : {"warning", "generation_config.json: num_beams is 4"})
    EXPECT_NE(greedy.err.find(part), std::string::npos) << greedy.err;
  const CliResult sampled = run({"-q", "--temperature", "1"});
  EXPECT_NE(sampled.err.find("typical_p is 0.5"), std::string::npos) << sampled.err;
}

// As Transformers does, whose checkpoints had these fields in config.json once.
TEST_F(GenerationConfigCliTest, WithoutTheFileConfigJsonHasTheFields) {
  EXPECT_EQ(ids(), expected("plain"));
}

TEST_F(GenerationConfigCliTest, NumbersThatOthersWriteAreTaken) {
  json fields = fields_of("plain");
  fields["top_k"] = -1;
  fields["max_length"] = 20.0;
  fields["eos_token_id"] = {-1, fields["eos_token_id"]};
  configure(fields);
  EXPECT_EQ(ids(), expected("plain"));
  fields["top_k"] = 50.0;
  fields["do_sample"] = true;
  configure(fields);
  EXPECT_EQ(ids({"--temperature", "0"}), expected("plain"));
}

}  // namespace
}  // namespace sluice
