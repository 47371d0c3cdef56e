#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/engine/serve/http_client.h"
#include "tests/support/cli_process.h"

namespace sluice::testing {

/// A server of the embedded model in f32.
class Serving {
 public:
  explicit Serving(const Arguments& more = {})
      : process_(Arguments{"serve", "--port", "0", "--dtype", "f32"} + more) {
    testing::wait_for_lines(process_.error_path(), 1);
    std::smatch found;
    const std::string said = testing::content_of(process_.error_path());
    if (!std::regex_search(said, found, std::regex("http://127\\.0\\.0\\.1:([0-9]+)")))
      throw std::runtime_error("no address: " + said);
    port_ = static_cast<std::uint16_t>(std::stoi(found[1]));
  }

  test::HttpClient client() const { return test::HttpClient(port_); }
  nlohmann::json post(const std::string& path, const nlohmann::json& body) const {
    const test::HttpAnswer answer = client().post(path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return nlohmann::json::parse(answer.body);
  }
  /// The text that a stream of /v1/completions gives.
  std::string streamed(nlohmann::json body) const {
    body["stream"] = true;
    test::HttpClient client = this->client();
    client.request("POST", "/v1/completions", body.dump());
    client.head();
    std::string text;
    for (const std::string& event : client.events()) {
      if (event != "[DONE]")
        text += nlohmann::json::parse(event)["choices"][0]["text"].get<std::string>();
    }
    return text;
  }
  /// Of all at once, in order.
  std::vector<std::string> streamed_at_once(const std::vector<nlohmann::json>& bodies) const {
    std::vector<std::future<std::string>> streams;
    streams.reserve(bodies.size());
    for (const nlohmann::json& body : bodies)
      streams.push_back(std::async(std::launch::async, [this, body] { return streamed(body); }));
    std::vector<std::string> texts;
    texts.reserve(streams.size());
    for (std::future<std::string>& stream : streams) texts.push_back(stream.get());
    return texts;
  }
  nlohmann::json live() const { return nlohmann::json::parse(client().get("/live").body); }
  CliResult stop() {
    process_.send(SIGTERM);
    return process_.wait();
  }

 private:
  CliProcess process_;
  std::uint16_t port_ = 0;
};

}  // namespace sluice::testing
