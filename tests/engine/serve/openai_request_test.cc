#include "engine/serve/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "served_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

OpenAiRequest parse(const std::string& body, Endpoint endpoint = Endpoint::completions,
                    const ServedModel& model = test::served_model()) {
  return parse_openai_request(body, endpoint, model, {}, 7);
}

/// A completion of one prompt, with more fields.
OpenAiRequest completion(const std::string& fields) {
  return parse(R"({"prompt": "Once")" + (fields.empty() ? "" : ", " + fields) + "}");
}

OpenAiRequest chat(const std::string& fields = "") {
  return parse(R"({"messages": [{"role": "user", "content": "Hi"}])" +
                   (fields.empty() ? "" : ", " + fields) + "}",
               Endpoint::chat);
}

TEST(OpenAiRequestTest, AFieldThatIsNotGivenHasOpenAiDefaults) {
  const OpenAiRequest parsed = completion("");
  EXPECT_EQ(parsed.model, "tiny");
  EXPECT_FALSE(parsed.stream || parsed.echo || parsed.return_token_ids || parsed.logprobs);
  ASSERT_EQ(parsed.prompts.size(), 1U);
  const Request& request = parsed.prompts[0];
  EXPECT_EQ(request.max_new_tokens, 16);
  EXPECT_EQ(request.num_outputs, 1);
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_FALSE(request.prompt_logprobs);
  EXPECT_TRUE(request.stop.empty() && request.stop_tokens.empty());
}

TEST(OpenAiRequestTest, ReadsEveryField) {
  const OpenAiRequest parsed = completion(
      R"("model": "tiny", "max_tokens": 9, "temperature": 0.5, "top_p": 0.25, "top_k": 40,
         "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -2,
         "frequency_penalty": 0.75, "seed": 42, "n": 3, "best_of": 3, "stop": ["a", "b"],
         "stop_token_ids": [5, 6], "min_tokens": 2, "ignore_eos": true, "echo": true,
         "logprobs": 4, "stream": true, "stream_options": {"include_usage": true}, "user": "me",
         "return_token_ids": true, "priority": -1)");
  EXPECT_TRUE(parsed.stream && parsed.echo && parsed.return_token_ids);
  EXPECT_EQ(parsed.stream_usage, OpenAiRequest::Usage::at_end);
  EXPECT_EQ(parsed.logprobs, 4);
  EXPECT_EQ(parsed.num_outputs(), 3);
  const Request& request = parsed.prompts.at(0);
  EXPECT_EQ(request.max_new_tokens, 9);
  EXPECT_EQ(request.min_new_tokens, 2);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_tokens, ElementsAre(5, 6));
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_EQ(request.prompt_logprobs, 4);
  EXPECT_EQ(request.priority, -1);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.125F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(request.sampling.presence_penalty, -2.0F);
  EXPECT_EQ(request.sampling.frequency_penalty, 0.75F);
  EXPECT_EQ(request.sampling.seed, 42U);
}

TEST(OpenAiRequestTest, NullIsNotGiven) {
  json body = {{"prompt", "Once"}};
  for (const char* name : {"model",
                           "max_tokens",
                           "max_completion_tokens",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "presence_penalty",
                           "frequency_penalty",
                           "seed",
                           "n",
                           "stop",
                           "stop_token_ids",
                           "min_tokens",
                           "ignore_eos",
                           "echo",
                           "logprobs",
                           "stream",
                           "stream_options",
                           "user",
                           "return_token_ids",
                           "add_special_tokens",
                           "tools",
                           "response_format",
                           "logit_bias",
                           "suffix",
                           "best_of",
                           "priority"}) {
    body[name] = nullptr;
  }
  const OpenAiRequest parsed = parse(body.dump());
  EXPECT_EQ(parsed.prompts.at(0).max_new_tokens, 16);
  EXPECT_EQ(parsed.prompts.at(0).sampling.temperature, 1.0F);
}

TEST(OpenAiRequestTest, UnknownFieldsAndEmptyRefusedOnesAreIgnored) {
  const OpenAiRequest plain = completion(R"("seed": 1)");
  const OpenAiRequest parsed = completion(
      R"("seed": 1, "no_such_field": {"a": [1]}, "tools": [], "logit_bias": {}, "suffix": "",
         "response_format": {"type": "text"}, "best_of": 1, "modalities": ["text"])");
  ASSERT_EQ(parsed.prompts.size(), 1U);
  const Request& found = parsed.prompts[0];
  const Request& expected = plain.prompts.at(0);
  EXPECT_EQ(found.prompt_tokens, expected.prompt_tokens);
  EXPECT_EQ(found.num_outputs, 1);
  EXPECT_EQ(found.max_new_tokens, expected.max_new_tokens);
  EXPECT_EQ(found.sampling.seed, 1U);
  EXPECT_EQ(found.sampling.temperature, expected.sampling.temperature);
  EXPECT_TRUE(found.stop.empty());
}

TEST(OpenAiRequestTest, TakesTheFourFormsOfPrompts) {
  const Ids once = test::served_model().tokenizer->encode("Once", Tokenizer::SpecialTokens::add);
  EXPECT_EQ(parse(R"({"prompt": "Once"})").prompts.at(0).prompt_tokens, once);
  const OpenAiRequest texts = parse(R"({"prompt": ["Once", "upon"]})");
  ASSERT_EQ(texts.prompts.size(), 2U);
  EXPECT_EQ(texts.prompts[0].prompt_tokens, once);
  EXPECT_EQ(texts.prompts[1].prompt, "upon");
  EXPECT_EQ(texts.prompts[1].index, 1);
  EXPECT_NE(texts.prompts[0].sampling.seed, texts.prompts[1].sampling.seed);
  EXPECT_THAT(parse(R"({"prompt": [1, 2, 3.0]})").prompts.at(0).prompt_tokens,
              ElementsAre(1, 2, 3));
  const OpenAiRequest ids = parse(R"({"prompt": [[1, 2], [3]]})");
  ASSERT_EQ(ids.prompts.size(), 2U);
  EXPECT_THAT(ids.prompts[1].prompt_tokens, ElementsAre(3));
}

TEST(OpenAiRequestTest, SpecialTokensCanBeLeftOut) {
  const Tokenizer& tokenizer = *test::served_model().tokenizer;
  EXPECT_EQ(completion(R"("add_special_tokens": false)").prompts.at(0).prompt_tokens,
            tokenizer.encode("Once", Tokenizer::SpecialTokens::leave_out));
}

TEST(OpenAiRequestTest, ChatRendersMessagesAndFillsTheContext) {
  const OpenAiRequest parsed = parse(
      R"({"messages": [{"role": "system", "content": "Be brief"},
          {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
          "chat_template_kwargs": {"x": 1, "a": 2}, "logprobs": true, "top_logprobs": 20})",
      Endpoint::chat);
  const Request& request = parsed.prompts.at(0);
  EXPECT_EQ(request.prompt, "system: Be brief\nuser: a\nb\n{\"x\":1,\"a\":2}\nassistant:");
  EXPECT_EQ(request.prompt_tokens, test::served_model().tokenizer->encode(
                                       request.prompt, Tokenizer::SpecialTokens::leave_out));
  EXPECT_EQ(request.max_new_tokens, 512 - std::ssize(request.prompt_tokens));
  EXPECT_EQ(parsed.logprobs, 20);
}

TEST(OpenAiRequestTest, ChatCanContinueTheLastMessage) {
  EXPECT_EQ(chat(R"("continue_final_message": true)").prompts.at(0).prompt, "user: Hi");
  EXPECT_EQ(chat(R"("add_generation_prompt": false)").prompts.at(0).prompt, "user: Hi\n");
}

TEST(OpenAiRequestTest, TheNewerNameOfMaxTokensCounts) {
  EXPECT_EQ(chat(R"("max_tokens": 3)").prompts.at(0).max_new_tokens, 3);
  EXPECT_EQ(chat(R"("max_tokens": 3, "max_completion_tokens": 4)").prompts.at(0).max_new_tokens, 4);
}

TEST(OpenAiRequestTest, AnEchoAloneWantsNoOutput) {
  const OpenAiRequest parsed = completion(R"("max_tokens": 0, "echo": true)");
  EXPECT_FALSE(parsed.wants_output);
  EXPECT_EQ(parsed.prompts.at(0).max_new_tokens, 1);
}

TEST(OpenAiRequestTest, TheModelFolderGivesDefaults) {
  ServedModel model = test::served_model();
  model.generation.do_sample = true;
  model.generation.temperature = 0.6F;
  model.generation.top_k = 20;
  model.generation.stop_strings = {"END"};
  model.generation.min_new_tokens = 5;
  const OpenAiRequest parsed =
      parse(R"({"prompt": "Once", "stop": "x", "top_k": -1})", Endpoint::completions, model);
  const Request& request = parsed.prompts.at(0);
  EXPECT_EQ(request.sampling.temperature, 0.6F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_THAT(request.stop, ElementsAre("END", "x"));
  EXPECT_EQ(request.min_new_tokens, 5);
}

TEST(OpenAiRequestTest, ATopPOfZeroLeavesTheLikeliest) {
  EXPECT_GT(completion(R"("top_p": 0)").prompts.at(0).sampling.top_p, 0.0F);
}

/// A body that is refused, and with what.
struct Refused {
  std::string name;
  Endpoint endpoint = Endpoint::completions;
  std::string body;
  std::string param;
  std::string message;  ///< a part of it
  int status = 400;
  std::string code;
};

class RefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTest, NamesTheFieldInOpenAiForm) {
  const Refused& refused = GetParam();
  try {
    parse(refused.body, refused.endpoint);
    FAIL() << "taken: " << refused.body;
  } catch (const ApiError& error) {
    const json body = json::parse(error.body());
    EXPECT_EQ(error.details().status, refused.status);
    EXPECT_EQ(body["error"]["param"], refused.param.empty() ? json(nullptr) : json(refused.param));
    EXPECT_EQ(body["error"]["code"], refused.code.empty() ? json(nullptr) : json(refused.code));
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
    EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr(refused.message));
    EXPECT_LT(error.body().size(), 1000U);
    EXPECT_EQ(error.body().find('\n'), std::string::npos);
  }
}

Refused field(const std::string& name, const std::string& param, const std::string& fields,
              const std::string& message) {
  return {.name = name,
          .body = R"({"prompt": "Once", )" + fields + "}",
          .param = param,
          .message = message,
          .code = {}};
}

Refused whole(const std::string& name, const std::string& param, const std::string& body,
              const std::string& message, Endpoint endpoint = Endpoint::completions) {
  return {.name = name,
          .endpoint = endpoint,
          .body = body,
          .param = param,
          .message = message,
          .code = {}};
}

std::vector<Refused> refused_bodies() {
  const std::string deep(100'000, '[');
  const std::string user = R"({"messages": [{"role": "user", "content": )";
  return {
      whole("empty", "", "", "JSON"),
      whole("cut_off", "", R"({"prompt": "Once)", "JSON"),
      whole("a_list", "", "[1]", "object"),
      whole("deep", "", R"({"prompt": )" + deep + std::string(100'000, ']') + "}", "nested deeper"),
      whole("deep_and_open", "", deep, "nested deeper"),
      whole("nan", "", R"({"prompt": "Once", "temperature": NaN})", "JSON"),
      whole("overflow", "", R"({"prompt": "Once", "temperature": 1e400})", "JSON"),
      whole("lone_surrogate", "", R"({"prompt": "\ud800"})", "JSON"),
      whole("invalid_utf8", "", "{\"prompt\": \"\xff\"}", "JSON"),
      whole("raw_newline", "", "{\"prompt\": \"a\nb\"}", "JSON"),
      whole("no_prompt", "prompt", "{}", "missing"),
      whole("null_prompt", "prompt", R"({"prompt": null})", "missing"),
      whole("empty_prompt", "prompt", R"({"prompt": ""})", "empty"),
      whole("empty_list", "prompt", R"({"prompt": []})", "empty"),
      whole("empty_ids", "prompt", R"({"prompt": [[]]})", "no tokens"),
      whole("number_as_prompt", "prompt", R"({"prompt": 5})", "found 5"),
      whole("negative_id", "prompt", R"({"prompt": [1, -1]})", "-1"),
      whole("id_outside", "prompt", R"({"prompt": [2048]})", "0 to 2047"),
      whole("fraction_of_id", "prompt", R"({"prompt": [1.5]})", "1.5"),
      whole("mixed_list", "prompt", R"({"prompt": ["a", 1]})", "list of token ids"),
      field("n_of_a_million", "n", R"("n": 1000000)", "1 to 128"),
      field("n_of_zero", "n", R"("n": 0)", "1 to 128"),
      field("n_as_text", "n", R"("n": "2")", "whole number"),
      field("best_of", "best_of", R"("best_of": 2)", "best_of"),
      field("hot", "temperature", R"("temperature": 2.5)", "0 to 2"),
      field("cold", "temperature", R"("temperature": -0.1)", "0 to 2"),
      field("temperature_text", "temperature", R"("temperature": "x")", "number"),
      field("top_p", "top_p", R"("top_p": 1.01)", "0 to 1"),
      field("top_k", "top_k", R"("top_k": -2)", "-1"),
      field("min_p", "min_p", R"("min_p": 2)", "0 to 1"),
      field("repetition", "repetition_penalty", R"("repetition_penalty": 0)", "0.01"),
      field("presence", "presence_penalty", R"("presence_penalty": 3)", "-2 to 2"),
      field("frequency", "frequency_penalty", R"("frequency_penalty": -3)", "-2 to 2"),
      field("seed", "seed", R"("seed": 1e30)", "whole number"),
      field("no_tokens", "max_tokens", R"("max_tokens": 0)", "1"),
      field("negative_tokens", "max_tokens", R"("max_tokens": -1)", "1"),
      field("true_tokens", "max_tokens", R"("max_tokens": true)", "whole number"),
      field("min_above_max", "min_tokens", R"("max_tokens": 3, "min_tokens": 4)", "at most the 3"),
      field("empty_stop", "stop", R"("stop": [""])", "empty"),
      field("stop_number", "stop", R"("stop": [1])", "text"),
      field("stop_long", "stop", R"("stop": ")" + std::string(2000, 'x') + "\"", "2000 bytes"),
      field("stop_ids", "stop_token_ids", R"("stop_token_ids": [-5])", "-5"),
      field("stop_ids_text", "stop_token_ids", R"("stop_token_ids": "5")", "list"),
      field("logprobs", "logprobs", R"("logprobs": 21)", "0 to 20"),
      field("logprobs_true", "logprobs", R"("logprobs": true)", "whole number"),
      field("echo", "echo", R"("echo": 1)", "true or false"),
      field("stream", "stream", R"("stream": "yes")", "true or false"),
      field("options", "stream_options", R"("stream_options": {})", "stream"),
      field("options_list", "stream_options", R"("stream": true, "stream_options": [])", "object"),
      field("user", "user", R"("user": 5)", "text"),
      field("tools", "tools", R"("tools": [{"type": "function"}])", "not supported"),
      field("json_mode", "response_format", R"("response_format": {"type": "json_object"})",
            "text"),
      field("bias", "logit_bias", R"("logit_bias": {"5": 1})", "not supported"),
      field("suffix", "suffix", R"("suffix": "end")", "not supported"),
      field("audio", "modalities", R"("modalities": ["text", "audio"])", "not supported"),
      {.name = "unknown_model",
       .body = R"({"prompt": "Once", "model": "gpt\n4"})",
       .param = "model",
       .message = "gpt\\n4",
       .status = 404,
       .code = "model_not_found"},
      {.name = "long_prompt",
       .body = json{{"prompt", Ids(513, 5)}}.dump(),
       .param = "prompt",
       .message = "512",
       .code = "context_length_exceeded"},
      {.name = "long_output",
       .body = R"({"prompt": [1, 2], "max_tokens": 511})",
       .param = "prompt",
       .message = "513",
       .code = "context_length_exceeded"},
      whole("too_many_outputs", "prompt",
            json{{"prompt", std::vector<Ids>(100, Ids{1})}, {"n", 6}}.dump(), "at most 512"),
      whole("no_messages", "messages", "{}", "missing", Endpoint::chat),
      whole("empty_messages", "messages", R"({"messages": []})", "at least one", Endpoint::chat),
      whole("text_as_message", "messages[0]", R"({"messages": ["hi"]})", "object", Endpoint::chat),
      whole("no_role", "messages[0].role", R"({"messages": [{"content": "x"}]})", "role",
            Endpoint::chat),
      whole("no_content", "messages[0].content", R"({"messages": [{"role": "user"}]})", "missing",
            Endpoint::chat),
      whole("image", "messages[0].content", user + R"([{"type": "image_url", "image_url": {}}]}]})",
            "image_url", Endpoint::chat),
      whole("sound", "messages[0].content", user + R"([{"type": "input_audio"}]}]})", "input_audio",
            Endpoint::chat),
      whole("part_without_text", "messages[0].content", user + R"([{"type": "text"}]}]})", "text",
            Endpoint::chat),
      whole("template_refuses", "messages", R"({"messages": [{"role": "nobody", "content": "x"}]})",
            "nobody may not speak", Endpoint::chat),
      whole("kwargs", "chat_template_kwargs", user + R"("x"}], "chat_template_kwargs": []})",
            "object", Endpoint::chat),
      whole("top_alone", "top_logprobs", user + R"("x"}], "top_logprobs": 2})", "logprobs",
            Endpoint::chat),
      whole("both_prompts", "continue_final_message",
            user + R"("x"}], "continue_final_message": true, "add_generation_prompt": true})",
            "exclude", Endpoint::chat),
  };
}

INSTANTIATE_TEST_SUITE_P(, RefusedTest, testing::ValuesIn(refused_bodies()),
                         [](const auto& tested) { return tested.param.name; });

TEST(OpenAiRequestTest, WithoutATemplateThereIsNoChat) {
  ServedModel model = test::served_model();
  model.render_chat = nullptr;
  try {
    parse(R"({"messages": [{"role": "user", "content": "x"}]})", Endpoint::chat, model);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.details().status, 400);
    EXPECT_EQ(error.details().code, "no_chat_template");
  }
}

TEST(OpenAiRequestTest, WithoutATokenizerIdsAreTaken) {
  ServedModel model = test::served_model();
  model.tokenizer = nullptr;
  EXPECT_EQ(parse(R"({"prompt": [1, 2]})", Endpoint::completions, model).prompts.size(), 1U);
  EXPECT_THROW(parse(R"({"prompt": "Once"})", Endpoint::completions, model), ApiError);
  EXPECT_THROW(parse(R"({"prompt": [1], "stop": "x"})", Endpoint::completions, model), ApiError);
}

TEST(OpenAiRequestTest, TokenizeAndDetokenize) {
  const ServedModel model = test::served_model();
  const Ids ids = model.tokenizer->encode("Once upon", Tokenizer::SpecialTokens::add);
  EXPECT_EQ(parse_tokenize_request(R"({"prompt": "Once upon"})", model).tokens, ids);
  EXPECT_FALSE(parse_tokenize_request(R"({"messages": [{"role": "user", "content": "x"}]})", model)
                   .tokens.empty());
  EXPECT_EQ(parse_detokenize_request(json{{"tokens", ids}}.dump(), model), ids);
  EXPECT_THROW(parse_detokenize_request(R"({"tokens": [-1]})", model), ApiError);
  EXPECT_THROW(parse_detokenize_request("{}", model), ApiError);
  EXPECT_THROW(parse_tokenize_request("{}", model), ApiError);
}

}  // namespace
}  // namespace sluice
