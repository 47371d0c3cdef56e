// sluice tokenize, from outside: what it prints, and what it refuses. The ids are those that
// tokenizers (tiny) and the SentencePiece library (llama2_model) give.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::Arguments;
using testing::CliResult;
using testing::expect_failure;
using testing::json_lines;
using testing::operator+;
using testing::run_cli;

using Ids = std::vector<std::int32_t>;

CliResult run_well(const Arguments& arguments) {
  CliResult result = run_cli(Arguments{"tokenize"} + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result;
}

json only_line(const Arguments& arguments) {
  const std::vector<json> lines = json_lines(run_well(arguments).out);
  EXPECT_EQ(lines.size(), 1U);
  return lines.at(0);
}

/// Llama-2's kind of tokenizer.model: nothing but a tokenizer's files.
const std::string sentencepiece_folder = SLUICE_TEST_DATA_DIR "/tokenizers/data/llama2_model";

TEST(CliTokenizeTest, TextOfTheTinyModel) {
  const json line = only_line({"--model", "tiny", "--prompt", "Once<|end_of_text|> é\n"});
  EXPECT_EQ(line.at("text"), "Once<|end_of_text|> é\n");
  EXPECT_EQ(line.at("ids"), json({2046, 520, 2047, 220, 127, 102, 198}));
  EXPECT_EQ(line.at("pieces"),
            json({"<|begin_of_text|>", "Once", "<|end_of_text|>", "Ġ", "Ã", "©", "Ċ"}));
  EXPECT_EQ(line.size(), 3U);
}

TEST(CliTokenizeTest, WithoutSpecialTokens) {
  const json line = only_line({"--prompt", "Once upon a time", "--no-special-tokens"});
  EXPECT_EQ(line.at("ids"), json({520, 571, 258, 414}));
  EXPECT_EQ(line.at("pieces"), json({"Once", "Ġupon", "Ġa", "Ġtime"}));
  EXPECT_EQ(only_line({"--prompt", "", "--no-special-tokens"}).at("ids"), json::array());
}

TEST(CliTokenizeTest, NeedsOnlyTheTokenizersFiles) {
  const json line = only_line({"--model", sentencepiece_folder, "--prompt", "Hello world 😀"});
  EXPECT_EQ(line.at("ids"),
            json({1, 687, 1060, 689, 708, 419, 687, 1033, 289, 708, 701, 687, 1216}));
  EXPECT_EQ(line.at("pieces"),
            json({"<s>", "▁", "H", "e", "l", "lo", "▁", "w", "or", "l", "d", "▁", "😀"}));
}

TEST(CliTokenizeTest, FileHasATextALine) {
  const TemporaryFolder folder;
  folder.write("texts", "Once upon a time\n\n Once\r\nlast");
  const Arguments file = {"--file", folder.file("texts"), "--no-special-tokens"};
  const std::vector<json> lines = json_lines(run_well(file).out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].at("ids"), json({520, 571, 258, 414}));
  EXPECT_EQ(lines[1].at("ids"), json::array());
  EXPECT_EQ(lines[2].at("text"), " Once\r");
  EXPECT_EQ(lines[3].at("text"), "last");
  EXPECT_EQ(json::parse(run_well(file + Arguments{"--json"}).out), json(lines));
}

TEST(CliTokenizeTest, EmptyFileHasNoTexts) {
  const TemporaryFolder folder;
  folder.write("texts", "");
  EXPECT_EQ(run_well({"--file", folder.file("texts")}).out, "");
  EXPECT_EQ(json::parse(run_well({"--file", folder.file("texts"), "--json"}).out), json::array());
}

TEST(CliTokenizeTest, PromptsFileIsReadAsGenerateReadsIt) {
  const TemporaryFolder folder;
  folder.write("p.jsonl", "{\"prompt\": \"Once\\nOnce\"}\n\n{\"id\": 7, \"prompt\": \"Once\"}\n");
  const std::vector<json> lines = json_lines(run_well({"--file", folder.file("p.jsonl")}).out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("ids"), json({2046, 520, 198, 520}));
  EXPECT_EQ(lines[1].at("ids"), json({2046, 520}));
}

TEST(CliTokenizeTest, DecodesIds) {
  for (const char* ids : {"520 571 258 414", "520,571, 258\t414", "[520, 571, 258, 414]"}) {
    const json line = only_line({"--decode", "--prompt", ids});
    EXPECT_EQ(line.at("text"), "Once upon a time") << ids;
    EXPECT_EQ(line.at("ids"), json({520, 571, 258, 414}));
    EXPECT_EQ(line.at("pieces"), json({"Once", "Ġupon", "Ġa", "Ġtime"}));
  }
  EXPECT_EQ(only_line({"--decode", "--prompt", "2046 127 102"}).at("text"), "é");
  EXPECT_EQ(only_line({"--decode", "--prompt", "520 127"}).at("text"), "Once\uFFFD");
  EXPECT_EQ(only_line({"--decode", "--prompt", "[]"}).at("text"), "");
}

TEST(CliTokenizeTest, DecodesAFileOfIds) {
  const TemporaryFolder folder;
  folder.write("ids", "520 571\n[258,414]\n");
  folder.write("ids.jsonl", "{\"prompt_token_ids\": [520, 571]}\n");
  const std::vector<json> lines =
      json_lines(run_well({"--decode", "--file", folder.file("ids")}).out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("text"), "Once upon");
  EXPECT_EQ(lines[1].at("text"), " a time");
  EXPECT_EQ(only_line({"--decode", "--file", folder.file("ids.jsonl")}).at("text"), "Once upon");
}

TEST(CliTokenizeTest, RendersAChat) {
  const TemporaryFolder folder;
  folder.write("t.jinja",
               "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}"
               "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  folder.write("c.json", R"([{"role": "user", "content": "Once"}])");
  folder.write("d.json", R"({"messages": [{"content": "Once", "role": "user"}],
                             "add_generation_prompt": false})");
  const Arguments own = {"--chat-template", folder.file("t.jinja"), "--chat"};
  const json line = only_line(own + Arguments{folder.file("c.json")});
  EXPECT_EQ(line.at("text"), "<|begin_of_text|>user: Once<|end_of_text|>assistant:");
  const json without = only_line(own + Arguments{folder.file("d.json")});
  EXPECT_EQ(without.at("text"), "<|begin_of_text|>user: Once<|end_of_text|>");
  // No token stands there that the template did not write.
  const json plain = only_line({"--no-special-tokens", "--prompt", without.at("text")});
  EXPECT_EQ(without.at("ids"), plain.at("ids"));
  EXPECT_EQ(without.at("ids").front(), 2046);
  EXPECT_EQ(without.at("ids").back(), 2047);
}

TEST(CliTokenizeTest, TakesTheModelsOwnTemplate) {
  const TemporaryFolder folder;
  std::filesystem::copy(sentencepiece_folder, folder.path(),
                        std::filesystem::copy_options::recursive);
  folder.write("chat_template.jinja", "{{ messages|length }} {{ tools|tojson }}");
  folder.write("c.json", R"({"messages": [{}, {}], "tools": [{"b": 1, "a": 2}]})");
  const Arguments chat = {"--model", folder.path().string(), "--chat", folder.file("c.json")};
  EXPECT_EQ(only_line(chat).at("text"), R"(2 [{"b": 1, "a": 2}])");
}

TEST(CliTokenizeTest, WrongChatsAreOneLine) {
  const TemporaryFolder folder;
  folder.write("c.json", "[{}]");
  folder.write("bad.json", "{\"messages\": 1}");
  folder.write("t.jinja", "{{ 1 }}");
  folder.write("loop.jinja",
               "{% for a in range(99999) %}\n{% for b in range(99999) %}{% endfor %}{% endfor %}");
  folder.write("bad.jinja", "\n{{ raise_exception('no\\nsystem') }}");
  const auto expect = [&](const Arguments& arguments, int exit_code,
                          const std::vector<std::string>& parts) {
    expect_failure(run_cli(Arguments{"tokenize"} + arguments), exit_code, parts);
  };
  const auto with = [&](const char* chat, const char* chat_template) {
    return Arguments{"--chat", folder.file(chat), "--chat-template", folder.file(chat_template)};
  };
  expect({"--chat", folder.file("c.json")}, 1, {"tiny", "no chat template", "--chat-template"});
  expect(with("bad.json", "t.jinja"), 1, {"messages is number"});
  expect(with("c.json", "loop.jinja"), 1, {"loop.jinja, line 2", "steps"});
  expect(with("c.json", "bad.jinja"), 1, {"bad.jinja, line 2: no", "system"});
  expect({"--chat-template", "x", "--prompt", "y"}, 2, {"--chat-template needs --chat"});
  expect({"--chat", "x", "--prompt", "y"}, 2, {"exclude each other"});
  expect({"--chat", "x", "--decode"}, 2, {"--decode"});
}

TEST(CliTokenizeTest, WrongUseIsOneLine) {
  const auto expect = [](const Arguments& arguments, int exit_code,
                         const std::vector<std::string>& parts) {
    expect_failure(run_cli(Arguments{"tokenize"} + arguments), exit_code, parts);
  };
  expect({}, 2, {"--prompt TEXT", "--file FILE"});
  expect({"--prompt", "x", "--file", "y"}, 2, {"exclude each other"});
  expect({"--model", "/nonexistent", "--prompt", "x"}, 1, {"/nonexistent"});
  expect({"--file", "/nonexistent/y"}, 1, {"/nonexistent/y"});
  expect({"--prompt", "a\xFFz"}, 1, {"--prompt", "UTF-8", "byte 2"});
  expect({"--decode", "--prompt", "1 x"}, 1, {"--prompt", "\"x\"", "token id"});
  expect({"--decode", "--prompt", "-1"}, 1, {"--prompt", "\"-1\""});
  expect({"--decode", "--prompt", "99999999999"}, 1, {"99999999999"});
  expect({"--decode", "--prompt", "[1, 2.5]"}, 1, {"2.5", "token id"});
  expect({"--decode", "--prompt", "[1"}, 1, {"--prompt", "JSON"});
  expect({"--decode", "--prompt", "2047 2048"}, 1, {"2048", "2047"});
}

TEST(CliTokenizeTest, WrongFilesAreOneLine) {
  const TemporaryFolder folder;
  folder.write("bad", "fine\nb\xC0\n");
  folder.write("text.jsonl", "{\"prompt\": \"x\"}\n");
  folder.write("ids.jsonl", "{\"prompt_token_ids\": [1]}\n");
  const auto expect = [&](const Arguments& arguments, const std::vector<std::string>& parts) {
    expect_failure(run_cli(Arguments{"tokenize"} + arguments), 1, parts);
  };
  expect({"--file", folder.file("bad")}, {"bad, line 2", "UTF-8", "byte 2"});
  expect({"--file", folder.file("ids.jsonl")}, {"ids.jsonl, line 1", "--decode"});
  expect({"--decode", "--file", folder.file("text.jsonl")},
         {"text.jsonl, line 1", "prompt_token_ids"});
  expect({"--model", folder.path().string(), "--prompt", "x"}, {"tokenizer.json"});
}

TEST(CliTokenizeTest, IsListedInTheHelp) {
  EXPECT_NE(run_cli({"--help"}).out.find("  tokenize "), std::string::npos);
}

}  // namespace
}  // namespace sluice
