// Everything that can be wrong with a command line or its files: one line that says what, where and
// what to do, the exit code, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/checkpoint_files.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliOutput;
using testing::CliProcess;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;
using testing::snapshot;

/// A model folder to damage, and a prompts file that suits it.
class Workplace : public TemporaryFolder {
 public:
  Workplace() { write("prompts.jsonl", "{\"id\": \"a\", \"prompt_token_ids\": [7, 8, 9]}\n"); }

  std::string model() const { return file("model"); }
  std::string prompts() const { return file("prompts.jsonl"); }
  std::string weights() const { return file("model/model.safetensors"); }

  /// Copies a case of tests/golden/models.
  void copy_model(const std::string& name) const {
    std::filesystem::copy(SLUICE_TEST_DATA_DIR "/golden/models/" + name, model());
  }
  template <typename Change>
  void change_config(const Change& change) const {
    json config = json::parse(testing::content_of(file("model/config.json")));
    change(config);
    write("model/config.json", config.dump());
  }
  /// Gives the header as JSON and the data to `change`, and writes what it makes of them.
  template <typename Change>
  void change_weights(const Change& change) const {
    const std::string old = testing::content_of(weights());
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, old.data(), sizeof(header_bytes));
    json header = json::parse(old.substr(8, header_bytes));
    std::string data = old.substr(8 + header_bytes);
    change(header, data);
    write("model/model.safetensors", testing::raw_safetensors(header.dump(), data));
  }
  Arguments generate(const Arguments& more = {}) const {
    return Arguments{"generate", "--model", model(), "--prompts",
                     prompts(),  "--dtype", "f32",   "-q"} +
           more;
  }
};

/// A bad run: what makes it bad, and what the line must say.
struct BadRun {
  const char* name;
  int exit_code;
  Arguments (*prepare)(const Workplace&);
  std::vector<std::string> parts;
};

constexpr const char* norm = "model.layers.0.input_layernorm.weight";
constexpr const char* query = "model.layers.0.self_attn.q_proj.weight";

const std::vector<BadRun> bad_models = {
    {"TruncatedWeights",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       std::filesystem::resize_file(place.weights(), 100000);
       return place.generate();
     },
     {"model.safetensors", "file", "get it again"}},
    {"WeightsCutInsideTheHeader",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       std::filesystem::resize_file(place.weights(), 100);
       return place.generate();
     },
     {"model.safetensors"}},
    {"EmptyWeights",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       std::filesystem::resize_file(place.weights(), 0);
       return place.generate();
     },
     {"model.safetensors"}},
    {"OverlappingTensors",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string&) {
         header[norm]["data_offsets"] = {0, 144};  // bf16 [72], inside of another tensor
       });
       return place.generate();
     },
     {"model.safetensors"}},
    {"TensorBeyondTheFile",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string& data) {
         header[norm]["data_offsets"] = {data.size(), data.size() + 144};
       });
       return place.generate();
     },
     {"model.safetensors", norm}},
    {"TensorOfTwoToThe63Bytes",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string&) {
         header[norm]["shape"] = {std::int64_t{1} << 62, 1};
         header[norm]["data_offsets"] = {0, std::uint64_t{1} << 63};
       });
       return place.generate();
     },
     {"model.safetensors", norm}},
    {"ShapeThatOverflows",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string&) {
         header[norm]["shape"] = {std::int64_t{1} << 62, std::int64_t{1} << 62};
       });
       return place.generate();
     },
     {"model.safetensors", norm}},
    {"HeaderThatIsNoJson",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.write("model/model.safetensors", testing::raw_safetensors("{nonsense", ""));
       return place.generate();
     },
     {"model.safetensors", "JSON"}},
    {"MissingShard",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-2-mha");
       std::filesystem::remove(place.file("model/model-00002-of-00003.safetensors"));
       return place.generate();
     },
     {"model-00002-of-00003.safetensors", "missing", "get it again"}},
    {"MissingTensor",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string&) {
         header["renamed"] = header[norm];
         header.erase(norm);
       });
       return place.generate();
     },
     {norm}},
    {"NoWeights",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       std::filesystem::remove(place.weights());
       return place.generate();
     },
     {"safetensors"}},
    {"WrongShape",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_config([](json& config) { config["intermediate_size"] = 117; });
       return place.generate();
     },
     {"model.safetensors", "[116, 72]", "[117, 72]"}},
    {"NotANumberWeight",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string& data) {
         const std::size_t begin = header[query]["data_offsets"][0];
         data.replace(begin + 10, 2, "\xC0\x7F");  // element 5 in bf16
       });
       return place.generate({"--output", place.file("out.jsonl")});
     },
     {"model.safetensors", query, "nan", "element 5"}},
    {"InfiniteWeight",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_weights([](json& header, std::string& data) {
         const std::size_t begin = header[norm]["data_offsets"][0];
         data.replace(begin, 2, "\x80\x7F");
       });
       return place.generate();
     },
     {"model.safetensors", norm, "inf"}},
    {"UnsupportedArchitecture",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_config([](json& config) {
         config["model_type"] = "gpt_bigcode";
         config["architectures"] = {"GPTBigCodeForCausalLM"};
       });
       return place.generate();
     },
     {"config.json", "GPTBigCodeForCausalLM", "supported are"}},
    {"UnsupportedRopeType",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_config([](json& config) { config["rope_scaling"]["rope_type"] = "mrope"; });
       return place.generate();
     },
     {"config.json", "rope_type", "mrope", "llama3"}},
    {"ConfigWithoutAField",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.change_config([](json& config) { config.erase("hidden_size"); });
       return place.generate();
     },
     {"config.json", "hidden_size"}},
    {"ConfigThatIsNoJson",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       place.write("model/config.json", "{");
       return place.generate();
     },
     {"config.json", "JSON"}},
    {"NoConfig",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       std::filesystem::remove(place.file("model/config.json"));
       return place.generate();
     },
     {"config.json"}},
    {"NoModelFolder",
     1,
     [](const Workplace& place) { return place.generate(); },
     {"no model folder", "tiny"}},
    {"TextPromptWithoutATokenizer",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       return Arguments{"generate", "--model", place.model(), "--prompt", "x"};
     },
     {"tokenizer", "prompt_token_ids"}},
    {"StopTextWithoutATokenizer",
     1,
     [](const Workplace& place) {
       place.copy_model("llama-3-gqa");
       return place.generate({"--stop", "x"});
     },
     {"--stop", "tokenizer"}},
};

/// A run of the embedded model with these prompts.
Arguments with_prompts(const Workplace& place, const std::string& text) {
  place.write("prompts.jsonl", text);
  return {"generate", "--prompts", place.prompts(), "--output", place.file("out.jsonl")};
}

const std::vector<BadRun> bad_prompts = {
    {"EmptyPrompt",
     1,
     [](const Workplace&) {
       return Arguments{"generate", "--prompt", ""};
     },
     {"--prompt", "empty"}},
    {"EmptyPromptInAFile",
     1,
     [](const Workplace& place) { return with_prompts(place, "\n{\"prompt\": \"\"}\n"); },
     {"prompts.jsonl, line 2", "empty"}},
    {"InvalidUtf8Prompt",
     1,
     [](const Workplace&) {
       return Arguments{"generate", "--prompt", "a\xFF"};
     },
     {"--prompt", "invalid UTF-8 at byte 2"}},
    {"InvalidUtf8InAFile",
     1,
     [](const Workplace& place) { return with_prompts(place, "{\"prompt\": \"\xC3(\"}\n"); },
     {"prompts.jsonl, line 1", "invalid UTF-8"}},
    {"BrokenLine37",
     1,
     [](const Workplace& place) {
       std::string text;
       for (int i = 1; i < 37; ++i) text += "{\"prompt\": \"a\"}\n";
       return with_prompts(place, text + "{\"prompt\": \"a\n{\"prompt\": \"b\"}\n");
     },
     {"prompts.jsonl, line 37", "JSON"}},
    {"PromptLongerThanTheContext",
     1,
     [](const Workplace& place) {
       std::string text;
       for (int i = 0; i < 1000; ++i) text += "Once upon a time. ";
       return with_prompts(place, "{\"prompt\": \"a\"}\n{\"prompt\": \"" + text + "\"}\n");
     },
     {"prompts.jsonl, line 2", "tokens", "context is 512", "shorten"}},
    {"TokenIdOutsideOfTheVocabulary",
     1,
     [](const Workplace& place) {
       return with_prompts(place, "{\"prompt_token_ids\": [1, 2048]}\n");
     },
     {"prompts.jsonl, line 1", "2048", "vocabulary"}},
    {"DuplicateIds",
     1,
     [](const Workplace& place) {
       return with_prompts(place,
                           "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 1, \"prompt\": \"b\"}\n");
     },
     {"prompts.jsonl, line 2", "line 1"}},
    {"EmptyPromptsFile",
     1,
     [](const Workplace& place) { return with_prompts(place, ""); },
     {"prompts.jsonl", "no prompts"}},
    {"NoPromptsFile",
     1,
     [](const Workplace&) {
       return Arguments{"generate", "--prompts", "/nonexistent/prompts.jsonl"};
     },
     {"cannot read /nonexistent/prompts.jsonl"}},
    {"PromptsFileIsAFolder",
     1,
     [](const Workplace& place) {
       return Arguments{"generate", "--prompts", place.path().string()};
     },
     {"cannot read", "folder"}},
};

Arguments with_output(const Workplace& place, const Arguments& more) {
  place.write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
  return Arguments{"generate", "--prompts", place.prompts(), "-q"} + more;
}

/// A line of an earlier run's output.
std::string finished_line(const char* id, const char* prompt) {
  return fmt::format(
      R"({{"finish_reason":"length","id":"{}","prompt":"{}","text":"x","token_ids":[1]}})"
      "\n",
      id, prompt);
}

const std::vector<BadRun> bad_outputs = {
    {"OutputIsAFolder",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--output", place.path().string()});
     },
     {"cannot write", "folder"}},
    {"OutputInAMissingFolder",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--output", place.file("none/out.jsonl")});
     },
     {"cannot write", "none/out.jsonl"}},
    {"OutputWhereNothingCanBeWritten",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--output", "/proc/out.jsonl"});
     },
     {"cannot write /proc/out.jsonl"}},
    {"OutputIsADevice",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--output", "/dev/full", "--overwrite"});
     },
     {"cannot write /dev/full"}},
    {"OutputExists",
     1,
     [](const Workplace& place) {
       place.write("out.jsonl", "precious");
       return with_output(place, {"--output", place.file("out.jsonl")});
     },
     {"out.jsonl exists", "--resume", "--overwrite"}},
    {"ResumeOfAForeignFile",
     1,
     [](const Workplace& place) {
       place.write("out.jsonl", "precious\n");
       return with_output(place, {"--output", place.file("out.jsonl"), "--resume"});
     },
     {"out.jsonl, line 1", "--resume"}},
    {"ResumeWithOtherPrompts",
     1,
     [](const Workplace& place) {
       place.write("out.jsonl", finished_line("1", "other"));
       return with_output(place, {"--output", place.file("out.jsonl"), "--resume"});
     },
     {"out.jsonl", "\"1\"", "another prompt"}},
    {"ResumeWithFewerPrompts",
     1,
     [](const Workplace& place) {
       place.write("out.jsonl", finished_line("9", "a"));
       return with_output(place, {"--output", place.file("out.jsonl"), "--resume"});
     },
     {"out.jsonl", "not among the prompts"}},
    {"StatsIsAFolder",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--stats", place.path().string()});
     },
     {"cannot write", "folder"}},
    {"StatsInAMissingFolder",
     1,
     [](const Workplace& place) {
       return with_output(
           place, {"--stats", place.file("none/s.json"), "--output", place.file("out.jsonl")});
     },
     {"cannot write", "none/s.json"}},
    {"StatsWhereNothingCanBeWritten",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--stats", "/proc/s.json"});
     },
     {"cannot write /proc/s.json"}},
    {"LessMemoryThanNeeded",
     1,
     [](const Workplace& place) {
       return with_output(place, {"--dtype", "f32", "--ddr", "1MiB", "--output", place.file("o")});
     },
     {"not enough memory", "weights", "KV cache", "1.0 MiB available", "use a smaller model"}},
    {"LessMemoryThanNeededButEnoughForASmallerBatch",
     1,
     [](const Workplace& place) {
       place.write("prompts.jsonl",
                   "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n");
       return Arguments{"generate", "--prompts", place.prompts(), "--dtype", "f32",
                        "--ddr",    "17MiB",     "--batch",       "3",       "--max-tokens",
                        "500"};
     },
     {"not enough memory", "17.0 MiB available", "--batch 2 would fit"}},
    {"MakeModelOfAnUnknownShape",
     1,
     [](const Workplace& place) {
       return Arguments{"make-model", "--shape", "opt-12m", "--out", place.file("new")};
     },
     {"opt-12m", "known are opt-125m"}},
    {"MakeModelIntoAFolderWithFiles",
     1,
     [](const Workplace& place) {
       return Arguments{"make-model", "--shape", "opt-125m", "--out", place.path().string()};
     },
     {"exists", "new folder"}},
    {"MakeModelWhereNothingCanBeWritten",
     1,
     [](const Workplace&) {
       return Arguments{"make-model", "--shape", "opt-125m", "--out", "/proc/new"};
     },
     {"/proc"}},
};

/// A command line that is wrong by itself.
struct BadUsage {
  const char* name;
  Arguments arguments;
  std::vector<std::string> parts;
};

const std::vector<BadUsage> bad_usages = {
    {"NoCommand", {}, {"no command", "--help"}},
    {"UnknownCommand", {"genrate"}, {"unknown command genrate", "did you mean generate?"}},
    {"UnknownCommandLikeNoOther", {"xyzzy"}, {"unknown command xyzzy", "--help"}},
    {"UnknownOption", {"generate", "--promt", "x"}, {"--promt", "did you mean --prompt?"}},
    {"UnknownOptionWithValue", {"generate", "--bacth=3"}, {"--bacth;", "did you mean --batch?"}},
    {"UnknownOptionOfInfo", {"info", "--all"}, {"--all", "--help"}},
    {"UnknownOptionOfMakeModel",
     {"make-model", "--shap", "opt-125m"},
     {"--shap", "did you mean --shape?"}},
    {"NothingToContinue", {"generate"}, {"--prompt", "--prompts"}},
    {"MissingValue", {"generate", "--prompt"}, {"--prompt", "missing"}},
    {"OptionForAValue",
     {"generate", "--prompts", "y", "--output", "--resume"},
     {"--output is missing before --resume"}},
    {"StrayArgument", {"generate", "--prompt", "Once", "upon"}, {"stray argument", "upon"}},
    {"BatchOfZero", {"generate", "--prompt", "x", "--batch", "0"}, {"--batch 0", "from 1"}},
    {"BatchBelowZero", {"generate", "--prompt", "x", "--batch", "-2"}, {"--batch -2", "from 1"}},
    {"BatchThatIsNoNumber", {"generate", "--prompt", "x", "--batch", "x"}, {"--batch", "'x'"}},
    {"NoTokens", {"generate", "--prompt", "x", "--max-tokens", "0"}, {"--max-tokens 0", "from 1"}},
    {"NegativeTemperature",
     {"generate", "--prompt", "x", "--temperature", "-1"},
     {"--temperature -1", "from 0"}},
    {"TemperatureThatIsNoNumber",
     {"generate", "--prompt", "x", "--temperature", "nan"},
     {"--temperature nan", "from 0"}},
    {"TopPAboveOne", {"generate", "--prompt", "x", "--top-p", "1.5"}, {"--top-p 1.5", "to 1"}},
    {"NegativeTopK", {"generate", "--prompt", "x", "--top-k", "-1"}, {"--top-k -1", "from 0"}},
    {"MinPAboveOne", {"generate", "--prompt", "x", "--min-p", "2"}, {"--min-p 2", "to 1"}},
    {"RepetitionPenaltyOfZero",
     {"generate", "--prompt", "x", "--repetition-penalty", "0"},
     {"--repetition-penalty 0"}},
    {"SeedThatIsNoNumber", {"generate", "--prompt", "x", "--seed", "x"}, {"--seed", "'x'"}},
    {"NoThreads", {"generate", "--prompt", "x", "--threads", "0"}, {"--threads 0", "from 1"}},
    {"UnknownType", {"generate", "--prompt", "x", "--dtype", "f8"}, {"--dtype f8", "bf16"}},
    {"UnknownAttention",
     {"generate", "--prompt", "x", "--attention", "x"},
     {"--attention x", "fused", "split"}},
    {"MemoryThatIsNoSize", {"generate", "--prompt", "x", "--ddr", "lots"}, {"--ddr lots", "20GiB"}},
    {"PromptAndPrompts", {"generate", "--prompt", "x", "--prompts", "y"}, {"exclude each other"}},
    {"OutputWithoutPrompts",
     {"generate", "--prompt", "x", "--output", "/nonexistent/y"},
     {"--output needs --prompts"}},
    {"ResumeWithoutOutput",
     {"generate", "--prompts", "y", "--resume"},
     {"--resume needs --output"}},
    {"ResumeAndOverwrite",
     {"generate", "--prompts", "y", "--output", "z", "--resume", "--overwrite"},
     {"--resume and --overwrite exclude"}},
    {"MakeModelWithoutShape", {"make-model", "--out", "/nonexistent/x"}, {"--shape", "--help"}},
    {"MakeModelWithoutOut", {"make-model", "--shape", "opt-125m"}, {"--out"}},
};

std::ostream& operator<<(std::ostream& out, const BadRun& run) { return out << run.name; }
std::ostream& operator<<(std::ostream& out, const BadUsage& usage) { return out << usage.name; }

template <typename Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

class CliBadRunTest : public ::testing::TestWithParam<BadRun> {};

TEST_P(CliBadRunTest, GivesOneLineAndLeavesNothing) {
  const Workplace place;
  const Arguments arguments = GetParam().prepare(place);
  const auto before = snapshot(place.path());
  expect_failure(run_cli(arguments), GetParam().exit_code, GetParam().parts);
  EXPECT_EQ(snapshot(place.path()), before);
}

INSTANTIATE_TEST_SUITE_P(Models, CliBadRunTest, ::testing::ValuesIn(bad_models), name_of<BadRun>);
INSTANTIATE_TEST_SUITE_P(Prompts, CliBadRunTest, ::testing::ValuesIn(bad_prompts), name_of<BadRun>);
INSTANTIATE_TEST_SUITE_P(Outputs, CliBadRunTest, ::testing::ValuesIn(bad_outputs), name_of<BadRun>);

class CliBadUsageTest : public ::testing::TestWithParam<BadUsage> {};

TEST_P(CliBadUsageTest, GivesOneLineAndExitsWithTwo) {
  expect_failure(run_cli(GetParam().arguments), 2, GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(CommandLine, CliBadUsageTest, ::testing::ValuesIn(bad_usages),
                         name_of<BadUsage>);

TEST(CliStandardOutputTest, FullOrClosedIsAnError) {
  const TemporaryFolder folder;
  folder.write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
  const std::vector<Arguments> runs = {
      {"generate", "--prompt", "a", "--max-tokens", "5", "-q"},
      {"generate", "--prompts", folder.file("prompts.jsonl"), "--max-tokens", "5", "-q"}};
  for (const Arguments& arguments : runs) {
    expect_failure(run_cli(arguments, CliOutput::full_disk), 1,
                   {"cannot write to standard output", "No space left"});
    expect_failure(run_cli(arguments, CliOutput::closed), 1, {"cannot write to standard output"});
  }
}

/// The output file had the number of what was closed.
TEST(CliErrorsTest, NothingIsPrintedIntoTheOutputWhereStderrIsClosed) {
  const TemporaryFolder folder;
  folder.write("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  const auto generate = [&](const std::string& more) {
    const std::string command = fmt::format(
        "'{}' generate --prompts '{}' --max-tokens 3 --output '{}' {} 0<&- 1>&- 2>&-",
        testing::sluice_program(), folder.file("prompts.jsonl"), folder.file("out.jsonl"), more);
    return testing::CliProcess("/bin/sh", {"-c", command}).wait().exit_code;
  };
  const auto output = [&] {
    std::ifstream file(folder.file("out.jsonl"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(generate(""), 0);
  const std::string written = output();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 2) << written;
  EXPECT_EQ(generate("--resume"), 0);
  EXPECT_EQ(output(), written);
}

/// What is said there is lost, and nothing else.
TEST(CliErrorsTest, ARunOutlivesAStderrWithoutRoom) {
  const CliResult plain =
      run_cli({"generate", "--prompt", "Once", "--max-tokens", "3", "--temperature", "0"});
  EXPECT_NE(plain.err, "") << "nothing that could be lost";
  const std::string command =
      fmt::format("'{}' generate --prompt Once --max-tokens 3 --temperature 0 2>/dev/full",
                  testing::sluice_program());
  const CliResult result = testing::CliProcess("/bin/sh", {"-c", command}).wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, plain.out);
}

/// One Ctrl-C is enough, and what was begun is cleared away.
TEST(CliErrorsTest, APolicyThatHangsEndsWithTheFirstCtrlC) {
  const TemporaryFolder folder;
  folder.write("prompts", "{\"prompt\":\"Once\"}\n");
  const std::string output = folder.file("output");
  const std::vector<Arguments> runs = {
      {"plan", "--model", "opt-125m", "--machine", "spr-a100"},
      {"generate", "--prompts", folder.file("prompts"), "--output", output},
      {"bench", "--gen-tokens", "4", "--prompt-tokens", "0"}};
  for (const Arguments& run : runs) {
    SCOPED_TRACE(run.front());
    CliProcess process(run + Arguments{"--policy", SLUICE_HANGING_POLICY});
    testing::wait_for_lines(process.output_path(), 1);  // it has been asked
    process.send(SIGINT);
    const CliResult result = process.wait();
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_EQ(result.err, "sluice: interrupted\n");
    EXPECT_FALSE(std::filesystem::exists(output));
  }
}

TEST(CliErrorsTest, ACacheThatCannotBeWrittenIsOneLine) {
  const CliResult result =
      testing::CliProcess("/usr/bin/env", {"SLUICE_CACHE=/dev/null", testing::sluice_program(),
                                           "generate", "--prompt", "a", "--max-tokens", "1"})
          .wait();
  expect_failure(result, 1, {"/dev/null", "set SLUICE_CACHE to a folder"});
}

TEST(CliMemoryTest, MemoryThatRunsOutIsOneLine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space of their own";
#endif
  const TemporaryFolder folder;
  ASSERT_EQ(run_cli({"make-model", "--shape", "opt-125m", "--out", folder.file("opt")}).exit_code,
            0);
  folder.write("prompts.jsonl", "{\"prompt_token_ids\": [1, 2]}\n");
  // In f32 the weights alone take 660 MB; what the program needs for itself is within 400 MB.
  const std::string command = "ulimit -d 400000 && exec \"$0\" \"$@\"";
  const CliResult result =
      CliProcess("/bin/sh",
                 {"-c", command, testing::sluice_program(), "generate", "--model",
                  folder.file("opt"), "--prompts", folder.file("prompts.jsonl"), "--dtype", "f32"})
          .wait();
  expect_failure(result, 1, {"memory", "use a smaller model"});
}

/// A variable that is as it was once this ends.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { before_ ? setenv(name_.c_str(), before_->c_str(), 1) : unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

TEST(CliErrorsTest, ValuesOfAnyLengthGiveAShortLine) {
  const std::string word(20'000, 'v');
  std::string words;
  for (int i = 0; i < 5'000; ++i) words += "two words ";
  for (const std::string& value : {word, words}) {
    const std::vector<Arguments> runs = {{value},
                                         {"generate", "--" + value},
                                         {"generate", "--prompt", "x", "--dtype", value},
                                         {"generate", "--prompt", "x", "--top-k", value},
                                         {"generate", "--prompt", "x", "--model", value},
                                         {"generate", "--prompt", "x", "--policy", value},
                                         {"generate", "--prompt", "x", "--ddr", value},
                                         {"generate", "--prompts", value},
                                         {"generate", value},
                                         {"make-model", "--out", "/nonexistent", "--shape", value},
                                         {"plan", "--model", "opt-30b", "--machine", value}};
    for (const Arguments& arguments : runs) {
      const CliResult result = run_cli(arguments);
      EXPECT_GT(result.exit_code, 0) << arguments.front().substr(0, 50);
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
      EXPECT_GT(result.err.size(), 20U);
      EXPECT_LT(result.err.size(), 2200U) << result.err.substr(0, 200);
    }
  }
}

TEST(CliErrorsTest, VariablesOfAnyLengthGiveShortLines) {
  const TemporaryFolder folder;
  const std::string value(20'000, 'v');
  const Arguments run = {"generate", "--prompt", "x", "--max-tokens", "2", "-q"};
  const Variable ignored("STARPU_" + value, value);
  const CliResult good = run_cli(run);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_NE(good.err.find("is ignored"), std::string::npos) << good.err;
  EXPECT_LT(good.err.size(), 500U);
  for (const char* name : {"SLUICE_WATCHDOG_SECONDS", "STARPU_TRACE_BUFFER_SIZE"}) {
    const Variable wrong(name, value);
    const CliResult result = run_cli(run + Arguments{"--trace", folder.file("trace")});
    EXPECT_LT(result.err.size(), 3000U) << result.err.substr(0, 200);
  }
}

TEST(CliErrorsTest, ControlCharactersOfValuesDoNotReachTheTerminal) {
  const CliResult result =
      run_cli({"generate", "--prompt", "x", "--dtype", "\x1b[2J\r\x9b\x07sluice: all is well"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find_first_of("\x1b\r\x07"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("\\x1b[2J\\r"), std::string::npos) << result.err;
}

// libgomp and hwloc print what they think of theirs before we run, or bind threads.
TEST(CliErrorsTest, VariablesOfLibrariesAreNotLookedAt) {
  const Arguments run = {"generate", "--prompt",      "Once", "--max-tokens",
                         "3",        "--temperature", "0",    "-q"};
  const CliResult plain = run_cli(run);
  const std::vector<std::pair<const char*, const char*>> variables = {
      {"OMP_NUM_THREADS", "abc"},     {"OMP_PROC_BIND", "nonsense"},    {"OMP_DISPLAY_ENV", "TRUE"},
      {"GOMP_CPU_AFFINITY", "x"},     {"OMP_STACKSIZE", "-1"},          {"HWLOC_XMLFILE", "/none"},
      {"HWLOC_COMPONENTS", "none,-"}, {"HWLOC_COMPONENTS_VERBOSE", "1"}};
  for (const auto& [name, value] : variables) {
    const Variable set(name, value);
    const CliResult result = run_cli(run);
    EXPECT_EQ(result.exit_code, 0) << name;
    EXPECT_EQ(result.err, plain.err) << name;
    EXPECT_EQ(result.out, plain.out) << name;
  }
}

TEST(CliErrorsTest, AModelThatIsCutShortWhileItIsReadIsOneLine) {
  const TemporaryFolder folder;
  std::filesystem::copy(SLUICE_TEST_DATA_DIR "/../models/tiny/model", folder.path() / "model");
  const std::string prompts = folder.file("prompts");
  ASSERT_EQ(mkfifo(prompts.c_str(), 0600), 0);
  CliProcess process({"generate", "--model", folder.file("model"), "--prompts", prompts, "-q"});
  {
    std::ofstream pipe(prompts);  // waits for the run, which has mapped the weights by then
    std::filesystem::resize_file(folder.path() / "model/model.safetensors", 1 << 20);
    pipe << "{\"prompt\": \"Once\"}\n";
  }
  expect_failure(process.wait(), 1, {"model/model.safetensors", "became shorter"});
}

}  // namespace
}  // namespace sluice
