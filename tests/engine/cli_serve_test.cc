// `sluice serve`, seen from outside: the real engine behind the server.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/engine/serve/serving.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::HttpAnswer;
using test::HttpClient;
using testing::Arguments;
using testing::expect_failure;
using testing::Serving;
using testing::operator+;
using testing::run_cli;

std::string generated(const std::string& prompt, int tokens, const Arguments& more = {}) {
  return run_cli(Arguments{"generate", "--prompt", prompt, "--max-tokens", std::to_string(tokens),
                           "--dtype", "f32", "-q", "--no-echo"} +
                 more)
      .out;
}

TEST(CliServeTest, GivesWhatGenerateGives) {
  Serving server;
  const json greedy = server.post(
      "/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 20}, {"temperature", 0}});
  EXPECT_EQ(greedy["choices"][0]["text"].get<std::string>() + "\n",
            generated("Once upon a time", 20, {"--temperature", "0"}));
  EXPECT_EQ(greedy["usage"]["completion_tokens"], 20);
  const json drawn = server.post("/v1/completions", {{"prompt", "The dog"},
                                                     {"max_tokens", 20},
                                                     {"temperature", 0.8},
                                                     {"top_p", 0.9},
                                                     {"seed", 5}});
  EXPECT_EQ(drawn["choices"][0]["text"].get<std::string>() + "\n",
            generated("The dog", 20, {"--temperature", "0.8", "--top-p", "0.9", "--seed", "5"}));
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST(CliServeTest, StreamsOfManyAtOnceAreThoseOfEachAlone) {
  Serving server({"--max-sequences", "4"});
  const std::vector<std::string> prompts = {"Lily and Tom", "In the garden", "A very long day",
                                            "One night",    "The",           "Rusty the fox"};
  std::vector<json> bodies;
  for (const std::string& prompt : prompts)
    bodies.push_back(
        {{"prompt", prompt}, {"max_tokens", 30}, {"temperature", 0}, {"ignore_eos", true}});
  const std::vector<std::string> texts = server.streamed_at_once(bodies);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(texts[i] + "\n", generated(prompts[i], 30, {"--temperature", "0", "--ignore-eos"}))
        << prompts[i];
  }
  EXPECT_EQ(server.stop().exit_code, 0);
}

/// log(softmax) of raw logits: each position's likeliest token has the greatest one, which greedy
/// draws; the same tokens as a prompt have the same logprobs.
TEST(CliServeTest, LogprobsOfAPromptAreThoseOfItsTokensWhenTheyWereDrawn) {
  Serving server;
  const json drawn = server.post("/v1/completions", {{"prompt", "Once upon a time"},
                                                     {"max_tokens", 12},
                                                     {"temperature", 0},
                                                     {"logprobs", 1},
                                                     {"return_token_ids", true}});
  const json& choice = drawn["choices"][0];
  std::vector<int> ids = choice["prompt_token_ids"];
  const std::size_t prompt = ids.size();
  for (const int id : choice["token_ids"].get<std::vector<int>>()) ids.push_back(id);
  const json given = server.post(
      "/v1/completions",
      {{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}, {"temperature", 0}});
  const json& known = given["choices"][0]["logprobs"]["token_logprobs"];
  ASSERT_EQ(known.size(), ids.size());
  EXPECT_TRUE(known[0].is_null());
  for (std::size_t i = 0; i + prompt < ids.size(); ++i) {
    EXPECT_NEAR(known[prompt + i].get<double>(),
                choice["logprobs"]["token_logprobs"][i].get<double>(), 1e-4)
        << i;
  }
  EXPECT_EQ(server.stop().exit_code, 0);
}

/// The fields that `generate` has no option for.
TEST(CliServeTest, LinesOfAPromptsFileGiveWhatTheServerGives) {
  const std::vector<json> fields = {
      {{"presence_penalty", 1.5}, {"temperature", 0}},
      {{"frequency_penalty", 1.5}, {"temperature", 0}},
      {{"stop_token_ids", json::array({44, 262, 13})}, {"temperature", 0}},
      {{"n", 3}, {"temperature", 1}, {"seed", 4}},
      {{"logprobs", 3}, {"temperature", 0}},
      {{"logprobs", 0}, {"temperature", 1}, {"seed", 9}, {"n", 2}}};
  const test::TemporaryFolder folder;
  std::string lines;
  for (json one : fields) {
    one["prompt"] = "Once upon a time";
    one["max_tokens"] = 40;
    lines += one.dump() + "\n";
  }
  folder.write("prompts.jsonl", lines);
  const std::vector<json> written = testing::json_lines(
      run_cli({"generate", "--prompts", folder.file("prompts.jsonl"), "--dtype", "f32", "-q"}).out);
  ASSERT_EQ(written.size(), fields.size());
  EXPECT_EQ(written[2]["finish_reason"], "stop");
  Serving server;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    json body = fields[i];
    body["prompt"] = "Once upon a time";
    body["max_tokens"] = 40;
    const json choices = server.post("/v1/completions", body)["choices"];
    std::vector<json> outputs = {written[i]};
    for (const json& other : written[i].value("other_outputs", json::array()))
      outputs.push_back(other);
    ASSERT_EQ(outputs.size(), choices.size());
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      EXPECT_EQ(outputs[k]["text"], choices[k]["text"]) << fields[i];
      EXPECT_EQ(outputs[k]["finish_reason"], choices[k]["finish_reason"]) << fields[i];
      ASSERT_EQ(outputs[k].contains("logprobs"), fields[i].contains("logprobs"));
      if (!fields[i].contains("logprobs")) continue;
      const json& known = choices[k]["logprobs"]["token_logprobs"];
      const json& found = outputs[k]["logprobs"]["token_logprobs"];
      ASSERT_EQ(found.size(), known.size());
      for (std::size_t t = 0; t < known.size(); ++t) {
        EXPECT_NEAR(found[t].get<double>(), known[t].get<double>(), 1e-6);
        EXPECT_EQ(outputs[k]["logprobs"]["top_logprobs"][t].size(), fields[i]["logprobs"]);
      }
    }
  }
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST(CliServeTest, ALostClientGivesItsPagesBack) {
  Serving server({"--max-model-len", "512"});
  {
    HttpClient client = server.client();
    client.request(
        "POST", "/v1/completions",
        json{{"prompt", "Once"}, {"max_tokens", 500}, {"ignore_eos", true}, {"stream", true}}
            .dump());
    client.head();
    client.event();
    EXPECT_EQ(server.live()["running"], 1);
  }
  for (int i = 0; i < 100 && server.live()["running"] != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(server.live()["running"], 0);
  EXPECT_LT(server.live()["output_tokens"], 500);
  server.post("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 2}});  // counts pages anew
  EXPECT_LE(server.live()["pools"][0]["used_pages"], 1);
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST(CliServeTest, PromptsThatBeginAlikeShareTheirBeginning) {
  Serving server;
  std::string story;
  for (int i = 0; i < 30; ++i) story += "The dog saw a cat in the garden. ";
  const json request = {{"prompt", story}, {"max_tokens", 8}, {"temperature", 0}};
  const json first = server.post("/v1/completions", request);
  EXPECT_EQ(server.live()["prefix_hit_tokens"], 0);
  EXPECT_EQ(server.post("/v1/completions", request)["choices"], first["choices"]);
  EXPECT_GT(server.live()["prefix_hit_tokens"], 100);
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST(CliServeTest, TooLongRequestsAreRefused) {
  Serving server({"--max-model-len", "64"});
  const HttpAnswer answer = server.client().post(
      "/v1/completions", json{{"prompt", "Once upon a time"}, {"max_tokens", 200}}.dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(json::parse(answer.body)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST(CliServeTest, WrongOptionsAreOneLine) {
  expect_failure(run_cli({"serve", "--port", "70000"}), 2, {"--port 70000"});
  expect_failure(run_cli({"serve", "--max-batch-tokens", "20"}), 2,
                 {"--max-batch-tokens 20", "80"});
  expect_failure(run_cli({"serve", "--prefix-cache", "yes"}), 2,
                 {"--prefix-cache yes", "on or off"});
  expect_failure(run_cli({"serve", "--kv-tokens", "100"}), 1,
                 {"--kv-tokens 100", "--max-model-len"});
  expect_failure(run_cli({"serve", "--chat-template", "/no/such"}), 1, {"/no/such"});
  expect_failure(run_cli({"serve", "--api-key-file", "/no/such"}), 1, {"/no/such"});
}

}  // namespace
}  // namespace sluice
