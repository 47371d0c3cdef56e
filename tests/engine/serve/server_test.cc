#include "engine/serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "http_client.h"
#include "scripted_backend.h"
#include "served_model.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::HttpAnswer;
using test::HttpClient;
using test::ScriptedBackend;
using ::testing::HasSubstr;

const std::string completions = "/v1/completions";
const std::string chat_completions = "/v1/chat/completions";

ServeSettings settings() {
  ServeSettings made;
  made.port = 0;
  made.model = test::served_model();
  return made;
}

/// A server on a thread of its own, in front of an engine that plays one.
class RunningServer {
 public:
  explicit RunningServer(ServeSettings with = settings(), ScriptedBackend::Script script = {})
      : backend_(with.model.tokenizer, script),
        server_(with, backend_),
        thread_([this] { exit_code_ = server_.run(stop_); }) {}
  ~RunningServer() { end(); }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  ScriptedBackend& backend() { return backend_; }
  Server& server() { return server_; }
  HttpClient client(int receive_buffer_bytes = 0) {
    return HttpClient(server_.port(), receive_buffer_bytes);
  }
  void stop() { stop_ = true; }
  /// Stops it, and waits for the end.
  int end() {
    stop();
    if (thread_.joinable()) thread_.join();
    return exit_code_;
  }
  int wait() {
    thread_.join();
    return exit_code_;
  }

 private:
  ScriptedBackend backend_;
  Server server_;
  std::atomic<bool> stop_{false};
  int exit_code_ = -1;
  std::thread thread_;
};

template <typename Condition>
bool within(std::chrono::milliseconds time, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

json error_of(const HttpAnswer& answer) { return json::parse(answer.body).at("error"); }

std::string text_of_events(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json choices = json::parse(event).value("choices", json::array());
    for (const json& choice : choices) text += choice.value("text", "");
  }
  return text;
}

double metric(HttpClient& client, const std::string& name) {
  const std::string text = client.get("/metrics").body;
  const std::size_t found = text.find("\n" + name + " ");
  return found == std::string::npos ? -1 : std::stod(text.substr(found + name.size() + 2));
}

// --- answers ---

TEST(ServerTest, AnswersACompletion) {
  RunningServer running;
  HttpClient client = running.client();
  const HttpAnswer answer =
      client.post(completions, R"({"prompt": "Once upon a time", "max_tokens": 4, "seed": 3})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  const json body = json::parse(answer.body);
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("cmpl-"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  const auto submitted = running.backend().submitted();
  ASSERT_EQ(submitted.size(), 1U);
  EXPECT_EQ(submitted[0].sampling.seed, 3U);
  EXPECT_EQ(submitted[0].id, body["id"].get<std::string>() + "-0");
  std::vector<std::int32_t> first = submitted[0].prompt_tokens;
  first.resize(4);
  std::string text;
  for (const std::int32_t id : first) text += test::served_model().tokenizer->token_bytes(id);
  EXPECT_EQ(body["choices"][0]["text"], text);
}

TEST(ServerTest, KeepsTheConnectionForMoreRequests) {
  RunningServer running;
  HttpClient client = running.client();
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer = client.post(completions, R"({"prompt": [9], "max_tokens": 1})");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("connection"), "keep-alive");
    client.request("POST", completions, R"({"prompt": [9], "max_tokens": 2, "stream": true})");
    EXPECT_EQ(client.head().status, 200);
    EXPECT_EQ(client.events().back(), "[DONE]");
  }
  EXPECT_EQ(metric(client, "sluice_http_connections"), 1);
}

TEST(ServerTest, TakesRequestsThatComeTogether) {
  RunningServer running;
  HttpClient client = running.client();
  const std::string body = R"({"prompt": [9], "max_tokens": 3})";
  const std::string one =
      "POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  client.send(one + one + "GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(json::parse(client.answer().body)["status"], "ready");
}

TEST(ServerTest, StreamsEventsAsTokensCome) {
  RunningServer running(settings(), {.token_delay = 5ms});
  HttpClient client = running.client();
  client.request("POST", completions, R"({"prompt": "Once upon", "max_tokens": 6, "stream": true,
      "stream_options": {"include_usage": true}})");
  const HttpAnswer head = client.head();
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.headers.at("content-type"), HasSubstr("text/event-stream"));
  EXPECT_TRUE(client.event());
  EXPECT_GT(running.backend().num_unfinished(), 0U) << "the first event waited for the last token";
  const std::vector<std::string> events = client.events();
  ASSERT_GT(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2])["usage"]["completion_tokens"], 6);
}

TEST(ServerTest, AStreamHasTheSameTextAsAnAnswer) {
  RunningServer running;
  HttpClient client = running.client();
  const std::string body = R"({"prompt": "Once upon a time", "max_tokens": 9)";
  const json whole = json::parse(client.post(completions, body + "}").body);
  client.request("POST", completions, body + R"(, "stream": true})");
  client.head();
  EXPECT_EQ(text_of_events(client.events()), whole["choices"][0]["text"]);
}

TEST(ServerTest, AChatIsRenderedAndAnswered) {
  RunningServer running(settings(), {.stop_after = 3});
  HttpClient client = running.client();
  const std::string body = R"({"messages": [{"role": "user", "content": "Hi"}])";
  const json answer = json::parse(client.post(chat_completions, body + "}").body);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
  EXPECT_EQ(running.backend().submitted().at(0).prompt, "user: Hi\nassistant:");
  client.request("POST", chat_completions, body + R"(, "stream": true})");
  client.head();
  const json first = json::parse(client.event().value());
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(client.events().back(), "[DONE]");
}

TEST(ServerTest, SeveralPromptsAndOutputsAreOneAnswer) {
  RunningServer running;
  HttpClient client = running.client();
  const json answer = json::parse(
      client.post(completions, R"({"prompt": [[9, 10], [11]], "n": 3, "max_tokens": 2})").body);
  ASSERT_EQ(answer["choices"].size(), 6U);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_NE(answer["choices"][0]["text"], answer["choices"][3]["text"]);
}

TEST(ServerTest, EchoesThePromptWithItsLogprobs) {
  RunningServer running;
  HttpClient client = running.client();
  const json answer = json::parse(client
                                      .post(completions, R"({"prompt": [300, 301, 302],
          "max_tokens": 1, "echo": true, "logprobs": 1})")
                                      .body);
  const json& lists = answer["choices"][0]["logprobs"];
  EXPECT_EQ(lists["token_logprobs"], (json{nullptr, -0.5, -0.75, -0.25}));
  EXPECT_EQ(lists["top_logprobs"][0], nullptr);
  EXPECT_EQ(lists["top_logprobs"][2].begin().value(), -0.75);
}

TEST(ServerTest, AChunkedBodyAndExpectationsAreRead) {
  RunningServer running;
  HttpClient client = running.client();
  client.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.send("e\r\n{\"prompt\": [9]\r\n");
  client.send("12\r\n, \"max_tokens\": 1}\r\n0\r\n\r\n");
  EXPECT_EQ(client.answer().status, 200);
  const std::string body = R"({"prompt": [9], "max_tokens": 1})";
  client.send("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.head().status, 100);
  client.send(body);
  EXPECT_EQ(client.answer().status, 200);
}

TEST(ServerTest, HttpOneZeroGetsItsStreamWithoutChunks) {
  RunningServer running;
  HttpClient client = running.client();
  const std::string body = R"({"prompt": [9], "max_tokens": 1, "stream": true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpAnswer head = client.head();
  EXPECT_EQ(head.headers.count("transfer-encoding"), 0U);
  EXPECT_EQ(head.headers.at("connection"), "close");
  EXPECT_TRUE(client.is_closed_within(2s));
}

TEST(ServerTest, AClientThatHasSentItsLastRequestGetsAnAnswer) {
  RunningServer running;
  HttpClient client = running.client();
  client.request("GET", "/health");
  client.half_close();
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_TRUE(client.is_closed_within(5s));
}

TEST(ServerTest, SmallPaths) {
  RunningServer running;
  HttpClient client = running.client();
  EXPECT_EQ(json::parse(client.get("/version").body)["version"], SLUICE_VERSION);
  const json models = json::parse(client.get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(json::parse(client.get("/v1/models/tiny?x=1").body)["id"], "tiny");
  EXPECT_EQ(error_of(client.get("/v1/models/other"))["code"], "model_not_found");
  client.request("HEAD", "/health");
  EXPECT_EQ(client.answer(false).status, 200);
  EXPECT_THAT(client.get("/").body, HasSubstr("<!doctype html>"));
}

TEST(ServerTest, TokenizesThereAndBack) {
  RunningServer running;
  HttpClient client = running.client();
  const json there = json::parse(
      client.post("/tokenize", R"({"prompt": "Once upon", "return_token_strs": true})").body);
  EXPECT_EQ(there["count"], there["tokens"].size());
  EXPECT_EQ(there["token_strs"].size(), there["tokens"].size());
  const json back =
      json::parse(client.post("/detokenize", json{{"tokens", there["tokens"]}}.dump()).body);
  EXPECT_EQ(back["prompt"], "Once upon");
}

TEST(ServerTest, LiveSaysWhatTheEngineDoes) {
  RunningServer running;
  HttpClient client = running.client();
  client.post(completions, R"({"prompt": [9], "max_tokens": 5})");
  const json live = json::parse(client.get("/live").body);
  EXPECT_EQ(live["model"], "tiny");
  EXPECT_EQ(live["pools"][0]["used_pages"], 40);
  EXPECT_EQ(live["iterations"]["two"], 5);
  ASSERT_EQ(live["recent"].size(), 5U);
  EXPECT_EQ(live["recent"][4]["work"][0]["device"], "gpu");
  EXPECT_EQ(live["moved"], json::array({{{"from", "ddr"}, {"to", "hbm"}, {"bytes", 5000}}}));
}

TEST(ServerTest, MetricsCountRequestsAndTokens) {
  RunningServer running(settings(), {.stop_after = 3});
  HttpClient client = running.client();
  client.post(completions, R"({"prompt": [9, 10], "max_tokens": 2})");
  client.post(completions, R"({"prompt": [9], "max_tokens": 5, "n": 2})");
  client.post(completions, R"({"prompt": ""})");
  EXPECT_EQ(metric(client, "sluice_outputs_total{finish_reason=\"length\"}"), 1);
  EXPECT_EQ(metric(client, "sluice_outputs_total{finish_reason=\"stop\"}"), 2);
  EXPECT_EQ(metric(client, "sluice_tokens_total{kind=\"prompt\"}"), 3);
  EXPECT_EQ(metric(client, "sluice_tokens_total{kind=\"output\"}"), 8);
  EXPECT_EQ(metric(client, "sluice_time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(metric(client, "sluice_time_per_output_token_seconds_count"), 3);
  EXPECT_EQ(metric(client, "sluice_request_latency_seconds_count"), 3);
  EXPECT_EQ(metric(client, "sluice_http_answers_total{status=\"400\"}"), 1);
  EXPECT_EQ(metric(client, "sluice_kv_pages{tier=\"ddr\"}"), 1000);
  EXPECT_EQ(metric(client, "sluice_kv_pages_used{tier=\"hbm\"}"), 40);
  EXPECT_EQ(metric(client, "sluice_requests_waiting"), 0);
  EXPECT_EQ(metric(client, "sluice_iterations_total{sub_batches=\"1\"}"), 0);
  EXPECT_GT(metric(client, "sluice_busy_seconds_total{device=\"gpu\"}"), 0);
  EXPECT_GT(metric(client, "sluice_moved_bytes_total{from=\"ddr\",to=\"hbm\"}"), 0);
}

// --- clients that go, or stand in the way ---

TEST(ServerTest, AClientLostBeforeItsFirstTokenIsCancelled) {
  RunningServer running;
  running.backend().hold(true);
  HttpClient client = running.client();
  client.request("POST", completions, R"({"prompt": [9], "stream": true})");
  ASSERT_TRUE(within(5s, [&] { return running.backend().num_unfinished() == 1; }));
  client.close();
  EXPECT_TRUE(within(5s, [&] { return running.backend().cancelled().size() == 1; }));
  HttpClient other = running.client();
  EXPECT_EQ(metric(other, "sluice_outputs_total{finish_reason=\"cancelled\"}"), 1);
}

TEST(ServerTest, AClientLostInItsStreamIsCancelled) {
  RunningServer running(settings(), {.token_delay = 1ms});
  HttpClient client = running.client();
  client.request("POST", completions, R"({"prompt": [9], "max_tokens": 500, "stream": true})");
  client.head();
  client.event();
  client.close();
  EXPECT_TRUE(within(5s, [&] { return running.backend().cancelled().size() == 1; }));
}

TEST(ServerTest, AllPromptsOfALostClientAreCancelled) {
  RunningServer running;
  running.backend().hold(true);
  HttpClient client = running.client();
  client.request("POST", completions, R"({"prompt": [[9], [10], [11]]})");
  ASSERT_TRUE(within(5s, [&] { return running.backend().num_unfinished() == 3; }));
  client.close();
  EXPECT_TRUE(within(5s, [&] { return running.backend().cancelled().size() == 3; }));
}

TEST(ServerTest, AStreamThatGathersTooMuchIsCancelled) {
  ServeSettings small = settings();
  small.model.max_model_len = 1 << 20;
  small.limits.unsent_bytes = 64 << 10;
  RunningServer running(small, {.token_delay = 10ms});
  HttpClient client = running.client(4096);
  client.request("POST", completions, R"({"prompt": [300], "max_tokens": 1000000, "stream": true,
      "n": 8, "logprobs": 20})");
  EXPECT_TRUE(within(10s, [&] { return running.backend().cancelled().size() == 1; }));
  EXPECT_TRUE(client.is_closed_within(5s));
  EXPECT_EQ(running.client().get("/health").status, 200);
}

TEST(ServerTest, AReaderThatTakesNothingIsCancelled) {
  ServeSettings small = settings();
  small.model.max_model_len = 1 << 20;
  small.limits.unsent_bytes = 1 << 30;
  small.limits.stalled_write = 200ms;
  RunningServer running(small, {.token_delay = 10ms});
  HttpClient client = running.client(4096);
  client.request("POST", completions, R"({"prompt": [300], "max_tokens": 1000000, "stream": true,
      "n": 2, "logprobs": 20})");
  EXPECT_TRUE(within(60s, [&] { return running.backend().cancelled().size() == 1; }));
}

TEST(ServerTest, HalfOpenConnectionsEnd) {
  ServeSettings hasty = settings();
  hasty.limits.idle = 150ms;
  hasty.limits.header = 100ms;
  hasty.limits.body = 100ms;
  RunningServer running(hasty);
  HttpClient silent = running.client();
  HttpClient half_head = running.client();
  HttpClient half_body = running.client();
  half_head.send("POST /v1/comp");
  half_body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(half_head.answer().status, 408);
  const HttpAnswer late = half_body.answer();
  EXPECT_EQ(late.status, 408);
  EXPECT_EQ(error_of(late)["type"], "invalid_request_error");
  EXPECT_TRUE(silent.is_closed_within(5s));
  EXPECT_TRUE(half_head.is_closed_within(5s));
}

TEST(ServerTest, TooManyConnectionsAreTurnedAway) {
  ServeSettings small = settings();
  small.limits.connections = 2;
  RunningServer running(small);
  HttpClient first = running.client();
  HttpClient second = running.client();
  first.get("/health");
  second.get("/health");
  HttpClient third = running.client();
  const HttpAnswer answer = third.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  first.close();
  EXPECT_TRUE(within(5s, [&] {
    try {
      return running.client().get("/health").status == 200;
    } catch (const std::runtime_error&) {
      return false;
    }
  }));
}

// --- errors ---

TEST(ServerTest, ErrorsHaveOpenAiForm) {
  RunningServer running;
  HttpClient client = running.client();
  const HttpAnswer nothing = client.get("/v1/nothing\x01");
  EXPECT_EQ(nothing.status, 400) << "a control character in the target";
  HttpClient again = running.client();
  const HttpAnswer missing = again.get("/v1/engines");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(error_of(missing)["type"], "invalid_request_error");
  EXPECT_EQ(error_of(missing)["param"], nullptr);
  const HttpAnswer method = again.get(completions);
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_EQ(error_of(again.post(completions, "{"))["param"], nullptr);
  EXPECT_EQ(error_of(again.post(completions, R"({"prompt": [9], "n": 1000000})"))["param"], "n");
  EXPECT_EQ(again.post(completions, R"({"prompt": [9], "model": "x"})").status, 404);
}

TEST(ServerTest, BytesThatAreNoHttpAreRefused) {
  RunningServer running;
  for (const std::string& bytes :
       {std::string("\x16\x03\x01 hello\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nbad header\r\n\r\n")}) {
    HttpClient client = running.client();
    client.send(bytes);
    EXPECT_EQ(client.answer().status, 400) << bytes;
    EXPECT_TRUE(client.is_closed_within(5s));
  }
}

TEST(ServerTest, LargeHeadersAndBodiesAreRefused) {
  ServeSettings small = settings();
  small.limits.header_bytes = 2048;
  small.limits.body_bytes = 1000;
  RunningServer running(small);
  HttpClient flood = running.client();
  flood.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 100; ++i)
    flood.send("X-" + std::to_string(i) + ": " + std::string(50, 'x') + "\r\n");
  EXPECT_EQ(flood.answer().status, 431);

  HttpClient big = running.client();
  const HttpAnswer answer = big.post(completions, std::string(1001, ' '));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.headers.at("connection"), "close");

  HttpClient chunked = running.client();
  chunked.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.send("400\r\n" + std::string(1024, ' ') + "\r\n");
  EXPECT_EQ(chunked.answer().status, 413);
}

TEST(ServerTest, APromptOfTenMegabytesIsRefused) {
  RunningServer running;
  HttpClient client = running.client();
  client.request("POST", completions, json{{"prompt", std::string(10 << 20, 'a')}}.dump());
  EXPECT_EQ(client.answer().status, 413);
}

TEST(ServerTest, BodiesShareABudget) {
  ServeSettings small = settings();
  small.limits.all_bodies_bytes = 1000;
  RunningServer running(small);
  HttpClient slow = running.client();
  slow.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 900\r\n\r\n{");
  const auto status_of_another = [&] {
    HttpClient client = running.client();
    return client.post(completions, R"({"prompt": [9], "user": ")" + std::string(300, 'x') + "\"}")
        .status;
  };
  EXPECT_TRUE(within(5s, [&] { return status_of_another() == 503; }));
  slow.close();
  EXPECT_TRUE(within(5s, [&] { return status_of_another() == 200; }));
}

TEST(ServerTest, AFullQueueSaysWhenToComeBack) {
  RunningServer running(settings(), {.most_waiting = 2});
  running.backend().hold(true);
  HttpClient client = running.client();
  const HttpAnswer answer = client.post(completions, R"({"prompt": [[9], [10], [11]]})");
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_EQ(error_of(answer)["type"], "rate_limit_error");
  EXPECT_EQ(running.backend().num_unfinished(), 0U) << "its first prompts are still queued";
  EXPECT_EQ(metric(client, "sluice_outputs_total{finish_reason=\"refused\"}"), 3);
}

TEST(ServerTest, WhileTheModelLoadsRequestsAreToComeBack) {
  RunningServer running;
  running.backend().set_state(EngineSnapshot::State::loading);
  HttpClient client = running.client();
  EXPECT_EQ(client.get("/health").status, 503);
  const HttpAnswer answer = client.post(completions, R"({"prompt": [9]})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.count("retry-after"), 1U);
  running.backend().set_state(EngineSnapshot::State::ready);
  EXPECT_EQ(client.post(completions, R"({"prompt": [9]})").status, 200);
}

TEST(ServerTest, ALineOfTheLogCannotBeForged) {
  RunningServer running;
  const auto level = logger().level();
  logger().set_level(spdlog::level::info);
  testing::internal::CaptureStderr();
  HttpClient client = running.client();
  const HttpAnswer answer =
      client.post(completions, R"({"prompt": [9], "model": "a\nsluice: error: \u001b[2J"})");
  client.get("/v1/\xc2\x9b%0asluice: error");
  client.close();
  const std::string log = testing::internal::GetCapturedStderr();
  logger().set_level(level);
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  for (const std::string& text : {log, error_of(answer)["message"].get<std::string>()}) {
    for (const char c : text)
      EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ') << text;
  }
}

// --- keys ---

class KeyFile {
 public:
  explicit KeyFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("sluice-keys-" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ServerTest, AKeyIsNeededWhereThereAreKeys) {
  const KeyFile file("# for tests\n\nfirst-key\r\nsecond-key\n");
  ServeSettings with_keys = settings();
  with_keys.api_key_file = file.path();
  RunningServer running(with_keys);
  const std::string body = R"({"prompt": [9], "max_tokens": 1})";
  HttpClient client = running.client();
  const HttpAnswer refused = client.post(completions, body);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(error_of(refused)["code"], "invalid_api_key");
  for (const char* wrong : {"Bearer first-ke", "Bearer first-keyy", "Bearer ", "first-key",
                            "Bearer # for tests", "Basic first-key"}) {
    HttpClient other = running.client();
    EXPECT_EQ(other.post(completions, body, std::string("Authorization: ") + wrong + "\r\n").status,
              401)
        << wrong;
  }
  HttpClient known = running.client();
  EXPECT_EQ(known.post(completions, body, "Authorization: Bearer first-key\r\n").status, 200);
  EXPECT_EQ(known.post(completions, body, "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(known.get("/health").status, 200);
  EXPECT_EQ(known.get("/metrics").status, 401);
}

TEST(ServerTest, AFileWithoutKeysIsRefused) {
  ServeSettings with_keys = settings();
  ScriptedBackend backend(nullptr, {});
  const KeyFile empty("# nothing\n");
  with_keys.api_key_file = empty.path();
  EXPECT_THROW(Server(with_keys, backend), Error);
  with_keys.api_key_file = "/nonexistent/keys";
  EXPECT_THROW(Server(with_keys, backend), Error);
}

// --- ports ---

TEST(ServerTest, APortInUseIsOneClearLine) {
  RunningServer running;
  ServeSettings same = settings();
  same.port = running.server().port();
  ScriptedBackend backend(nullptr, {});
  try {
    Server second(same, backend);
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is in use; choose another one with --port"));
  }
  same.host = "no such host";
  EXPECT_THROW(Server(same, backend), Error);
}

// --- ends ---

TEST(ServerTest, StopsAtOnceWhereNothingRuns) {
  RunningServer running;
  HttpClient client = running.client();
  client.get("/health");
  EXPECT_EQ(running.end(), 0);
  EXPECT_TRUE(client.is_closed_within(1s));
  EXPECT_THROW(running.client(), std::runtime_error);
}

TEST(ServerTest, DrainsWhatRunsAndGivesBackWhatWaits) {
  RunningServer running(settings(), {.token_delay = 20ms, .most_running = 1});
  HttpClient runs = running.client();
  runs.request("POST", completions, R"({"prompt": [300], "max_tokens": 20, "stream": true})");
  runs.head();
  HttpClient waits = running.client();
  waits.request("POST", completions, R"({"prompt": [300], "stream": true})");
  HttpClient idle = running.client();
  idle.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 16\r\n");
  ASSERT_TRUE(within(5s, [&] { return running.backend().num_unfinished() == 2; }));
  running.stop();
  const HttpAnswer given_back = waits.answer();
  EXPECT_EQ(given_back.status, 503);
  EXPECT_EQ(given_back.headers.count("retry-after"), 1U);
  EXPECT_EQ(given_back.headers.at("connection"), "close");
  idle.send("\r\n{\"prompt\": [300]}");
  EXPECT_EQ(idle.answer().status, 503);
  const std::vector<std::string> events = runs.events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(running.end(), 0);
}

TEST(ServerTest, WhatDoesNotFinishInTimeEndsWithAnError) {
  ServeSettings hasty = settings();
  hasty.drain = 100ms;
  RunningServer running(hasty, {.token_delay = 10ms});
  HttpClient client = running.client();
  client.request("POST", completions, R"({"prompt": [300], "max_tokens": 510, "stream": true})");
  client.head();
  client.event();
  running.stop();
  const std::vector<std::string> events = client.events();
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(json::parse(events[events.size() - 2])["error"]["code"], "shutting_down");
  EXPECT_EQ(running.end(), 0);
  EXPECT_EQ(running.backend().cancelled().size(), 1U);
}

TEST(ServerTest, AFailedEngineEndsEveryStreamAndTheServer) {
  RunningServer running(settings(), {.token_delay = 10ms});
  HttpClient stream = running.client();
  stream.request("POST", completions, R"({"prompt": [300], "max_tokens": 400, "stream": true})");
  stream.head();
  HttpClient whole = running.client();
  whole.request("POST", completions, R"({"prompt": [300], "max_tokens": 400})");
  ASSERT_TRUE(within(5s, [&] { return running.backend().num_unfinished() == 2; }));
  running.backend().break_down("lm_head failed on 3 x 5");
  running.server().fail("lm_head failed on 3 x 5");
  const std::vector<std::string> events = stream.events();
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(json::parse(events[events.size() - 2])["error"]["message"], "lm_head failed on 3 x 5");
  const HttpAnswer answer = whole.answer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(error_of(answer)["type"], "server_error");
  EXPECT_EQ(running.wait(), 1);
}

TEST(ServerTest, AFailureIsHeardOfWithoutRequests) {
  RunningServer running;
  running.server().fail("no memory");
  EXPECT_EQ(running.wait(), 1);
}

// --- many at once ---

TEST(ServerTest, ThousandIdleConnectionsHoldUpNobody) {
  constexpr int num_idle = 1000;
  constexpr int num_half_open = 200;
  raise_open_files_limit();
  if (sysconf(_SC_OPEN_MAX) < 2 * (num_idle + num_half_open) + 200)
    GTEST_SKIP() << "too few open files are allowed here";
  RunningServer running;
  std::vector<HttpClient> others;
  for (int i = 0; i < num_idle + num_half_open; ++i) {
    others.push_back(running.client());
    if (i >= num_idle) others.back().send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  }
  HttpClient client = running.client();
  EXPECT_EQ(client.post(completions, R"({"prompt": [9], "max_tokens": 1})").status, 200);
  EXPECT_TRUE(within(5s, [&] {
    return metric(client, "sluice_http_connections") == num_idle + num_half_open + 1;
  }));
  others.clear();
  EXPECT_TRUE(within(5s, [&] { return metric(client, "sluice_http_connections") == 1; }));
}

TEST(ServerTest, ManyStreamsWithCancelsAllGetTheirOwnTokens) {
  RunningServer running(settings(), {.token_delay = 1ms});
  constexpr int num_clients = 24;
  std::atomic<int> num_right{0};
  std::vector<std::thread> threads;
  threads.reserve(num_clients);
  for (int i = 0; i < num_clients; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 4; ++round) {
        HttpClient client = running.client();
        const std::int32_t id = 300 + i;
        client.request("POST", completions,
                       json{{"prompt", {id}}, {"max_tokens", 20}, {"stream", true}}.dump());
        client.head();
        if ((i + round) % 3 == 0) continue;  // leaves
        std::string expected;
        for (int k = 0; k < 20; ++k) expected += test::served_model().tokenizer->token_bytes(id);
        if (text_of_events(client.events()) == expected) ++num_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, num_clients * 4 - num_clients * 4 / 3);
  EXPECT_TRUE(within(5s, [&] { return running.backend().num_unfinished() == 0; }));
  HttpClient client = running.client();
  EXPECT_EQ(metric(client, "sluice_requests_running"), 0);
}

}  // namespace
}  // namespace sluice
