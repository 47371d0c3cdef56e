#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/requests/source.h"

namespace sluice::test {

/// Requests of which some come when others have got so many tokens; some are cancelled.
class ArrivingRequests : public RequestSource {
 public:
  struct Arrival {
    Request request;
    std::int64_t after_tokens = 0;
    std::optional<std::int64_t> cancelled_after_tokens;
  };
  explicit ArrivingRequests(std::vector<Arrival> arrivals) : arrivals_(std::move(arrivals)) {}

  void note_token() { ++num_tokens_; }

  std::optional<Request> take(double /*now_s*/) override {
    if (ended() || (arrivals_[next_].after_tokens > num_tokens_ && !waited_)) return std::nullopt;
    waited_ = false;
    return arrivals_[next_++].request;
  }
  std::optional<double> next_arrival_s() const override { return std::nullopt; }
  bool ended() const override { return next_ == arrivals_.size(); }
  void wait(RunClock& /*clock*/) override { waited_ = true; }
  std::vector<std::int64_t> take_cancelled() override {
    std::vector<std::int64_t> indices;
    for (Arrival& arrival : arrivals_) {
      if (!arrival.cancelled_after_tokens || *arrival.cancelled_after_tokens > num_tokens_)
        continue;
      indices.push_back(arrival.request.index);
      arrival.cancelled_after_tokens.reset();
    }
    return indices;
  }

 private:
  std::vector<Arrival> arrivals_;
  std::size_t next_ = 0;
  std::int64_t num_tokens_ = 0;
  bool waited_ = false;
};

/// Greedy and seeded ones, with penalties, priorities, several outputs, beginnings alike.
inline std::vector<Request> random_requests(std::mt19937_64& random, std::int64_t vocab_size,
                                            int num_requests) {
  const auto below = [&](std::uint32_t limit) { return static_cast<int>(random() % limit); };
  std::vector<std::int32_t> common(64);
  for (std::int32_t& token : common) token = below(static_cast<std::uint32_t>(vocab_size));
  std::vector<Request> requests;
  for (int i = 0; i < num_requests; ++i) {
    Request request;
    request.index = i;
    request.id = std::to_string(i);
    if (below(2) == 0) request.prompt_tokens.assign(common.begin(), common.begin() + below(64));
    const int own = 1 + below(below(4) == 0 ? 90 : 12);
    for (int k = 0; k < own; ++k)
      request.prompt_tokens.push_back(below(static_cast<std::uint32_t>(vocab_size)));
    request.max_new_tokens = 1 + below(40);
    request.ignore_eos = below(3) > 0;
    request.priority = below(3);
    request.num_outputs = below(5) == 0 ? 1 + below(3) : 1;
    if (below(2) == 0) {
      request.sampling = {.temperature = 0.9F,
                          .top_k = below(2) * 50,
                          .top_p = below(2) == 0 ? 1.0F : 0.9F,
                          .repetition_penalty = below(3) == 0 ? 1.2F : 1.0F,
                          .presence_penalty = below(3) == 0 ? 0.7F : 0.0F,
                          .frequency_penalty = below(3) == 0 ? 0.4F : 0.0F,
                          .seed = random()};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

/// One behind the other: each when the engine has nothing else to do.
inline std::vector<ArrivingRequests::Arrival> one_by_one(const std::vector<Request>& requests) {
  std::vector<ArrivingRequests::Arrival> arrivals;
  for (const Request& request : requests)
    arrivals.push_back({.request = request, .after_tokens = 1 << 30, .cancelled_after_tokens = {}});
  return arrivals;
}

/// At random times; a share of them is cancelled.
inline std::vector<ArrivingRequests::Arrival> arriving_at_random(
    std::mt19937_64& random, const std::vector<Request>& requests, double cancelled) {
  std::vector<ArrivingRequests::Arrival> arrivals;
  std::int64_t after = 0;
  for (const Request& request : requests) {
    ArrivingRequests::Arrival& arrival =
        arrivals.emplace_back(ArrivingRequests::Arrival{request, after, std::nullopt});
    if (static_cast<double>(random() % 1000) < 1000 * cancelled)
      arrival.cancelled_after_tokens = after + static_cast<std::int64_t>(random() % 200);
    if (random() % 3 == 0) after += static_cast<std::int64_t>(random() % 60);
  }
  return arrivals;
}

}  // namespace sluice::test
