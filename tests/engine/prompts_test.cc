#include "engine/requests/prompts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::expect_error;

std::vector<PromptLine> parse(std::string_view text) { return parse_prompts(text, "p.jsonl"); }

void expect_refused(std::string_view text, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse(text); }, parts);
}

std::string good_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "{\"prompt\": \"a\"}\n";
  return text;
}

TEST(PromptsTest, ReadsTextAndTokenIds) {
  const auto prompts = parse(
      "{\"id\": \"x\", \"prompt\": \"caf\xC3\xA9 \\u00e9\", \"other\": [1]}\n"
      "{\"id\": 7, \"prompt_token_ids\": [0, 2147483647]}\n"
      "{\"prompt\": \"no id\"}\n");
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[0].line, 1);
  EXPECT_EQ(prompts[0].id, "x");
  EXPECT_EQ(prompts[0].prompt, "caf\xC3\xA9 \xC3\xA9");
  EXPECT_EQ(prompts[1].id, "7");
  EXPECT_EQ(prompts[1].prompt_token_ids, (std::vector<std::int32_t>{0, 2147483647}));
  EXPECT_EQ(prompts[2].id, "3");
}

TEST(PromptsTest, EmptyLinesAreSkippedButCounted) {
  const auto prompts = parse("\n  \t\r\n{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}\n\n");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].line, 3);
  EXPECT_EQ(prompts[1].line, 5);
  EXPECT_EQ(prompts[1].id, "5");
}

TEST(PromptsTest, WindowsLineEndsAndAMissingLastOneAreFine) {
  const auto prompts = parse("{\"prompt\": \"a\"}\r\n{\"prompt\": \"b\"}");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].prompt, "a");
  EXPECT_EQ(prompts[1].prompt, "b");
}

TEST(PromptsTest, ByteOrderMarkIsSkipped) {
  EXPECT_EQ(parse("\xEF\xBB\xBF{\"prompt\": \"a\"}\n").front().prompt, "a");
}

TEST(PromptsTest, BrokenLineIsNamed) {
  const std::string text = good_lines(36) + "{\"prompt\": \"a\n" + good_lines(3);
  expect_refused(text, {"p.jsonl, line 37", "not valid JSON"});
  expect_refused("{\"prompt\": \"a\"} {}\n", {"p.jsonl, line 1", "not valid JSON", "column 17"});
}

TEST(PromptsTest, LineThatIsNoObjectIsRefused) {
  expect_refused(good_lines(1) + "[\"a\"]\n", {"p.jsonl, line 2", "expected an object"});
  expect_refused("\"a\"\n", {"p.jsonl, line 1", "expected an object"});
}

TEST(PromptsTest, LineWithoutPromptIsRefused) {
  expect_refused(good_lines(2) + "{\"text\": \"a\"}\n", {"p.jsonl, line 3", "\"prompt\""});
  expect_refused("{\"prompt\": 3}\n", {"p.jsonl, line 1", "\"prompt\""});
  expect_refused("{\"prompt\": null}\n", {"p.jsonl, line 1", "\"prompt\""});
}

TEST(PromptsTest, EmptyPromptIsRefused) {
  expect_refused(good_lines(4) + "{\"prompt\": \"\"}\n", {"p.jsonl, line 5", "empty"});
}

TEST(PromptsTest, InvalidUtf8IsRefusedWithItsPlace) {
  expect_refused(good_lines(1) + "{\"prompt\": \"\xFF\"}\n",
                 {"p.jsonl, line 2", "invalid UTF-8 at byte 13", "UTF-8"});
  expect_refused("{\"prompt\": \"\xED\xA0\x80\"}\n", {"p.jsonl, line 1", "invalid UTF-8"});
  expect_refused("{\"prompt\": \"\\ud800\"}\n", {"p.jsonl, line 1", "not valid JSON"});
}

TEST(PromptsTest, IdsMustDiffer) {
  expect_refused("{\"id\": \"x\", \"prompt\": \"a\"}\n\n{\"id\": \"x\", \"prompt\": \"b\"}\n",
                 {"p.jsonl, line 3", "\"x\"", "line 1"});
  expect_refused("{\"prompt\": \"a\"}\n{\"id\": 1, \"prompt\": \"b\"}\n",
                 {"p.jsonl, line 2", "\"1\"", "line 1"});
  expect_refused("{\"id\": \"a\\nb\", \"prompt\": \"a\"}\n{\"id\": \"a\\nb\", \"prompt\": \"b\"}\n",
                 {"p.jsonl, line 2", "\"a\\nb\""});
}

TEST(PromptsTest, IdIsTextOrAWholeNumber) {
  EXPECT_EQ(parse("{\"id\": -7, \"prompt\": \"a\"}").front().id, "-7");
  EXPECT_EQ(parse("{\"id\": \"\", \"prompt\": \"a\"}").front().id, "");
  for (const std::string_view id : {"1.5", "null", "true", "[1]", "{}"}) {
    expect_refused(good_lines(1) + fmt::format("{{\"id\": {}, \"prompt\": \"a\"}}\n", id),
                   {"p.jsonl, line 2", "\"id\""});
  }
}

TEST(PromptsTest, BadTokenIdsAreRefused) {
  for (const std::string_view ids : {"[]", "7", "\"7\"", "{}", "null"}) {
    expect_refused(fmt::format("{{\"prompt_token_ids\": {}}}\n", ids),
                   {"p.jsonl, line 1", "\"prompt_token_ids\" must be"});
  }
  for (const std::string_view id :
       {"-1", "2147483648", "18446744073709551615", "1.0", "1e3", "\"7\"", "null", "[1]"}) {
    expect_refused(fmt::format("{{\"prompt_token_ids\": [1, {}]}}\n", id),
                   {"p.jsonl, line 1", "\"prompt_token_ids\" has", "no token id"});
  }
}

TEST(PromptsTest, DeepNestingIsRefusedWhereverItStands) {
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  for (const std::string& line :
       {fmt::format("{{\"prompt_token_ids\": [{}]}}\n", deep), deep + "\n",
        std::string(300000, '['), fmt::format("{{\"prompt\": \"a\", \"other\": {}}}\n", deep)})
    expect_refused(line, {"p.jsonl, line 1", "nested deeper than 500 levels"});
  EXPECT_EQ(parse(fmt::format("{{\"prompt\": \"a\", \"other\": {}{}}}\n", std::string(400, '['),
                              std::string(400, ']')))
                .size(),
            1U);
}

TEST(PromptsTest, AnIdOfMegabytesIsRefused) {
  const auto line = [](std::size_t size) {
    return fmt::format("{{\"id\": \"{}\", \"prompt\": \"a\"}}\n", std::string(size, 'i'));
  };
  EXPECT_EQ(parse(line(4096)).size(), 1U);
  for (const std::size_t size : {std::size_t{4097}, std::size_t{3} << 20})
    expect_refused(line(size), {"p.jsonl, line 1", "\"id\" has", "at most 4096"});
}

TEST(PromptsTest, MessageStaysShortForALongLine) {
  try {
    parse("{\"prompt\": \"" + std::string(100000, 'a') + "\n");
    FAIL() << "a cut-off line was accepted";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 500U);
  }
}

TEST(PromptsTest, FileWithoutPromptsIsRefused) {
  expect_refused("", {"p.jsonl", "no prompts"});
  expect_refused("\n \r\n", {"p.jsonl", "no prompts"});
}

TEST(PromptsTest, ALineHasFieldsOfItsOwn) {
  const PromptLine line =
      parse(
          R"({"prompt": "a", "max_tokens": 7, "min_tokens": 2, "temperature": 0.5, "top_p": 0.25, )"
          R"("top_k": -1, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -2, )"
          R"("frequency_penalty": 2, "seed": -1, "n": 3, "stop": ["b", "c"], )"
          R"("stop_token_ids": [5], "ignore_eos": true, "logprobs": 4, "priority": -3})")
          .front();
  EXPECT_EQ(line.fields.max_tokens, 7);
  EXPECT_EQ(line.fields.min_tokens, 2);
  EXPECT_EQ(line.logprobs, 4);
  Request request;
  request.sampling.top_k = 40;
  line.fields.apply_to(request);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.125F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(request.sampling.presence_penalty, -2);
  EXPECT_EQ(request.sampling.frequency_penalty, 2);
  EXPECT_EQ(request.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(request.num_outputs, 3);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(request.stop_tokens, std::vector<std::int32_t>{5});
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, -3);
}

TEST(PromptsTest, FieldsThatAreMissingOrNullChangeNothing) {
  const PromptLine line =
      parse(R"({"prompt": "a", "temperature": null, "stop": null, "n": null})").front();
  Request request;
  request.sampling.temperature = 0.75F;
  request.stop = {"x"};
  request.num_outputs = 2;
  line.fields.apply_to(request);
  EXPECT_EQ(request.sampling.temperature, 0.75F);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.num_outputs, 2);
  EXPECT_FALSE(line.logprobs.has_value());
}

TEST(PromptsTest, AWrongFieldIsNamedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("max_tokens": 0)", "max_tokens must be a whole number from 1"},
      {R"("max_tokens": "7")", "max_tokens must be a whole number"},
      {R"("temperature": 3)", "temperature must be a number from 0 to 2"},
      {R"("temperature": "hot")", "temperature must be a number"},
      {R"("top_p": 1.5)", "top_p must be a number from 0 to 1"},
      {R"("min_p": -1)", "min_p must be"},
      {R"("top_k": 1.5)", "top_k must be"},
      {R"("repetition_penalty": 0)", "repetition_penalty must be"},
      {R"("presence_penalty": 2.5)", "presence_penalty must be"},
      {R"("frequency_penalty": [1])", "frequency_penalty must be"},
      {R"("seed": 1e30)", "seed must be"},
      {R"("n": 129)", "n must be a whole number from 1 to 128"},
      {R"("n": 2, "best_of": 3)", "best_of must equal n"},
      {R"("stop": [""])", "stop has an empty text"},
      {R"("stop": 7)", "stop must be"},
      {R"("stop_token_ids": [-1])", "stop_token_ids has -1"},
      {R"("min_tokens": -1)", "min_tokens must be"},
      {R"("ignore_eos": 1)", "ignore_eos must be true or false"},
      {R"("logprobs": 21)", "logprobs must be a whole number from 0 to 20"},
      {R"("logprobs": true)", "logprobs must be"},
      {R"("priority": 1e10)", "priority must be"}};
  for (const auto& [field, message] : cases)
    expect_refused(good_lines(1) + fmt::format("{{{}, \"prompt\": \"a\"}}\n", field),
                   {"p.jsonl, line 2", message});
}

TEST(PromptsTest, ATypingErrorIsRefusedAndOtherFieldsAreNot) {
  const std::pair<const char*, const char*> cases[] = {{"temperture", "temperature"},
                                                       {"Temperature", "temperature"},
                                                       {"max-tokens", "max_tokens"},
                                                       {"maxTokens", "max_tokens"},
                                                       {"max_token", "max_tokens"},
                                                       {"seeds", "seed"},
                                                       {"stop_token_id", "stop_token_ids"},
                                                       {"promt_token_ids", "prompt_token_ids"},
                                                       {"ID", "id"},
                                                       {"n_predict", "max_tokens"},
                                                       {"repeat_penalty", "repetition_penalty"},
                                                       {"max_new_tokens", "max_tokens"}};
  for (const auto& [name, meant] : cases)
    expect_refused(fmt::format("{{\"{}\": 1, \"prompt\": \"a\"}}\n", name),
                   {"p.jsonl, line 1", quote(name), fmt::format("did you mean \"{}\"?", meant)});
  for (const char* name : {"idx", "text", "model", "topic", "task", "source", "category", "label",
                           "messages", "reference", "x", "", "meta_data"})
    EXPECT_EQ(parse(fmt::format("{{\"{}\": 1, \"prompt\": \"a\"}}\n", name)).size(), 1U) << name;
}

TEST(PromptsTest, UnreadableFileIsRefused) {
  const test::TemporaryFolder folder;
  const std::string missing = folder.file("missing.jsonl");
  expect_error([&] { read_prompts(missing); }, {"cannot read", missing});
  expect_error([&] { read_prompts(folder.path().string()); },
               {"cannot read", folder.path().string(), "folder"});
  folder.write("p.jsonl", "{\"prompt\": \"a\"}\n");
  EXPECT_EQ(read_prompts(folder.file("p.jsonl")).size(), 1U);
}

}  // namespace
}  // namespace sluice
