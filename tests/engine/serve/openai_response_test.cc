#include "engine/serve/openai_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "served_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// An answer to a body; token 300 is "a"-like text of the tiny tokenizer, whatever it is.
OpenAiAnswer answer_to(const std::string& body, Endpoint endpoint = Endpoint::completions) {
  const ServedModel model = test::served_model();
  return {parse_openai_request(body, endpoint, model, {}, 1), "id-1", 1000, model.tokenizer};
}

OutputToken token(std::int32_t id, const std::string& text, std::int64_t output = 0) {
  return {.output = output, .token = id, .text = text, .logprobs = {}};
}

OutputToken with_logprobs(std::int32_t id, float logprob, std::vector<TokenLogprob> top) {
  OutputToken made = token(id, test::served_model().tokenizer->token_bytes(id));
  made.logprobs = {.token = {.token = id, .logprob = logprob}, .likeliest = std::move(top)};
  return made;
}

std::string text_of(std::int32_t id) { return logprob_text(test::served_model().tokenizer, id); }

TEST(OpenAiAnswerTest, ACompletionIsOneObject) {
  OpenAiAnswer answer = answer_to(R"({"prompt": [5, 6], "n": 2, "model": "tiny"})");
  EXPECT_TRUE(answer.add_token(0, token(7, "b", 1)).empty());
  EXPECT_TRUE(answer.add_token(0, token(7, "a", 0)).empty());
  EXPECT_TRUE(answer.finish_output(0, 1, FinishReason::length, "c").empty());
  EXPECT_FALSE(answer.is_finished());
  answer.finish_output(0, 0, FinishReason::stop, "");
  ASSERT_TRUE(answer.is_finished());
  EXPECT_EQ(json::parse(answer.whole()), json::parse(R"({
      "id": "id-1", "object": "text_completion", "created": 1000, "model": "tiny",
      "choices": [
        {"index": 0, "text": "a", "logprobs": null, "finish_reason": "stop"},
        {"index": 1, "text": "bc", "logprobs": null, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}})"));
}

TEST(OpenAiAnswerTest, AChatCompletionIsOneObject) {
  OpenAiAnswer answer =
      answer_to(R"({"messages": [{"role": "user", "content": "Hi"}]})", Endpoint::chat);
  answer.add_token(0, token(7, "Yes"));
  answer.finish_output(0, 0, FinishReason::stop, ".");
  const json whole = json::parse(answer.whole());
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"], json::parse(R"([{"index": 0, "message": {"role": "assistant",
      "content": "Yes.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}])"));
}

TEST(OpenAiAnswerTest, ChoicesAreNumberedPromptByPrompt) {
  OpenAiAnswer answer = answer_to(R"({"prompt": [[5], [6, 7]], "n": 2})");
  for (std::int64_t prompt : {1, 0}) {
    for (std::int64_t output : {0, 1}) {
      answer.add_token(prompt, token(9, std::to_string(prompt) + std::to_string(output), output));
      answer.finish_output(prompt, output, FinishReason::stop, "");
    }
  }
  const json whole = json::parse(answer.whole());
  EXPECT_EQ(whole["choices"][1]["text"], "01");
  EXPECT_EQ(whole["choices"][2]["text"], "10");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
}

TEST(OpenAiAnswerTest, AStreamOfACompletion) {
  OpenAiAnswer answer =
      answer_to(R"({"prompt": [5], "stream": true, "stream_options": {"include_usage": true}})");
  EXPECT_TRUE(answer.add_token(0, token(7, "")).empty()) << "nothing to say";
  const auto chunks = answer.add_token(0, token(8, "ab"));
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(json::parse(chunks[0]), json::parse(R"({
      "id": "id-1", "object": "text_completion", "created": 1000, "model": "tiny",
      "choices": [{"index": 0, "text": "ab", "logprobs": null, "finish_reason": null}],
      "usage": null})"));
  const auto last = answer.finish_output(0, 0, FinishReason::length, "c");
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(
      json::parse(last[0])["choices"],
      json::parse(R"([{"index": 0, "text": "c", "logprobs": null, "finish_reason": "length"}])"));
  EXPECT_EQ(json::parse(answer.usage_chunk().value())["choices"], json::array());
  EXPECT_EQ(json::parse(answer.usage_chunk().value())["usage"]["completion_tokens"], 2);
}

TEST(OpenAiAnswerTest, AStreamOfAChat) {
  OpenAiAnswer answer = answer_to(
      R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "stream_options":
          {"include_usage": true, "continuous_usage_stats": true}})",
      Endpoint::chat);
  const auto first = answer.add_token(0, token(7, "Yes"));
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(json::parse(first[0])["object"], "chat.completion.chunk");
  EXPECT_EQ(json::parse(first[0])["choices"][0]["delta"],
            json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(json::parse(first[1])["choices"][0]["delta"], json::parse(R"({"content": "Yes"})"));
  EXPECT_EQ(json::parse(first[1])["usage"]["completion_tokens"], 1);
  const auto last = answer.finish_output(0, 0, FinishReason::stop, "");
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(
      json::parse(last[0])["choices"],
      json::parse(R"([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}])"));
}

TEST(OpenAiAnswerTest, LogprobsAreParallelLists) {
  OpenAiAnswer answer =
      answer_to(R"({"prompt": [300, 301, 302], "echo": true, "logprobs": 1, "max_tokens": 2})");
  answer.add_prompt_logprobs(
      0, {{.token = {.token = 301, .logprob = -0.1F}, .likeliest = {{301, -0.1F}}},
          {.token = {.token = 302, .logprob = -2.5F}, .likeliest = {{310, -0.3F}}}});
  answer.add_token(0, with_logprobs(303, -1.25F, {{304, -0.7F}}));
  answer.finish_output(0, 0, FinishReason::length, "");
  const json choice = json::parse(answer.whole())["choices"][0];
  const json& lists = choice["logprobs"];
  EXPECT_EQ(lists["tokens"], (json{text_of(300), text_of(301), text_of(302), text_of(303)}));
  EXPECT_EQ(lists["token_logprobs"], (json{nullptr, -0.1, -2.5, -1.25}));
  EXPECT_EQ(lists["top_logprobs"][0], nullptr);
  EXPECT_EQ(lists["top_logprobs"][1], (json{{text_of(301), -0.1}}));
  EXPECT_EQ(lists["top_logprobs"][2], (json{{text_of(302), -2.5}, {text_of(310), -0.3}}));
  EXPECT_EQ(lists["top_logprobs"][3], (json{{text_of(303), -1.25}, {text_of(304), -0.7}}));
  EXPECT_EQ(lists["text_offset"][0], 0);
  EXPECT_EQ(lists["text_offset"][1], std::ssize(text_of(300)));
  EXPECT_THAT(choice["text"].get<std::string>(),
              HasSubstr(test::served_model().tokenizer->token_bytes(303)));
}

TEST(OpenAiAnswerTest, ATokensNumberHasOneText) {
  OpenAiAnswer answer = answer_to(R"({"prompt": [5], "logprobs": 2})");
  answer.add_token(0, with_logprobs(300, -0.123456789F, {{300, -0.123456789F}, {301, -9e9F}}));
  answer.finish_output(0, 0, FinishReason::length, "");
  const std::string whole = answer.whole();
  EXPECT_THAT(whole, HasSubstr(R"("token_logprobs":[-0.12345679])"));
  EXPECT_THAT(whole, HasSubstr("\":-0.12345679"));
  EXPECT_THAT(whole, HasSubstr("\":-9999.0"));
}

TEST(OpenAiAnswerTest, AStreamsOffsetsGoOn) {
  OpenAiAnswer answer =
      answer_to(R"({"prompt": [300], "echo": true, "logprobs": 0, "stream": true})");
  const auto chunks = answer.add_token(0, with_logprobs(301, -1, {}));
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(json::parse(chunks[0])["choices"][0]["logprobs"]["token_logprobs"], json{nullptr});
  EXPECT_EQ(json::parse(chunks[0])["choices"][0]["text"], text_of(300));
  EXPECT_EQ(json::parse(chunks[1])["choices"][0]["logprobs"]["text_offset"],
            json{std::ssize(text_of(300))});
}

TEST(OpenAiAnswerTest, ChatsLogprobsAreObjectsWithBytes) {
  OpenAiAnswer answer = answer_to(
      R"({"messages": [{"role": "user", "content": "Hi"}], "logprobs": true, "top_logprobs": 1})",
      Endpoint::chat);
  answer.add_token(0, with_logprobs(300, -1.5F, {{301, -0.5F}}));
  answer.finish_output(0, 0, FinishReason::stop, "");
  const json entry = json::parse(answer.whole())["choices"][0]["logprobs"]["content"][0];
  const std::string text = text_of(300);
  EXPECT_EQ(entry["token"], text);
  EXPECT_EQ(entry["logprob"], -1.5);
  EXPECT_EQ(entry["bytes"].size(), text.size());
  EXPECT_EQ(entry["bytes"][0], static_cast<unsigned char>(text[0]));
  EXPECT_EQ(entry["top_logprobs"][0]["token"], text_of(301));
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], -0.5);
}

TEST(OpenAiAnswerTest, APartOfACharacterIsWrittenAsBytes) {
  const Tokenizer& tokenizer = *test::served_model().tokenizer;
  int num_parts = 0;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_FALSE(find_invalid_utf8(logprob_text(&tokenizer, id))) << id;
    if (tokenizer.token_bytes(id) != "\xff") continue;
    EXPECT_EQ(logprob_text(&tokenizer, id), "bytes:\\xff");
    ++num_parts;
  }
  EXPECT_EQ(num_parts, 1);
}

TEST(OpenAiAnswerTest, TokenIdsComeWhereTheyAreAskedFor) {
  OpenAiAnswer answer = answer_to(R"({"prompt": [5, 6], "return_token_ids": true})");
  answer.add_token(0, token(7, "x"));
  answer.finish_output(0, 0, FinishReason::stop, "");
  const json choice = json::parse(answer.whole())["choices"][0];
  EXPECT_EQ(choice["prompt_token_ids"], (json{5, 6}));
  EXPECT_EQ(choice["token_ids"], (json{7}));

  OpenAiAnswer stream = answer_to(R"({"prompt": [5], "return_token_ids": true, "stream": true})");
  const auto chunks = stream.add_token(0, token(7, ""));
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(json::parse(chunks[0])["choices"][0]["prompt_token_ids"], (json{5}));
  EXPECT_EQ(json::parse(chunks[1])["choices"][0]["token_ids"], (json{7}));
}

TEST(OpenAiAnswerTest, AnEchoAloneHasNoOutput) {
  OpenAiAnswer answer = answer_to(R"({"prompt": "Once", "echo": true, "max_tokens": 0})");
  answer.add_token(0, token(7, "x"));
  answer.finish_output(0, 0, FinishReason::stop, "y");
  const json whole = json::parse(answer.whole());
  EXPECT_EQ(whole["choices"][0]["text"], "Once");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
}

}  // namespace
}  // namespace sluice
