#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/serve/backend.h"

namespace sluice {

/// How one request went, as its client saw it.
struct RequestTimes {
  using Clock = std::chrono::steady_clock;

  Clock::time_point arrival = Clock::now();
  Clock::time_point first_token{};
  Clock::time_point last_token{};
  std::int64_t output_tokens = 0;
};

/// What /metrics says, in Prometheus' text format. Its calls come from one thread.
class ServeMetrics {
 public:
  ServeMetrics();
  ~ServeMetrics();

  void count_answer(int status);
  /// An output's end: "stop", "length", "cancelled", "error" or "refused".
  void count_output(const std::string& finish_reason);
  void count_prompt_tokens(std::int64_t tokens);
  void count_output_token();
  /// From arrival to the first token.
  void observe_first_token(double time_s);
  /// From arrival to the last token, and the mean time between tokens, of an output that ended by
  /// itself.
  void observe_output(const RequestTimes& times);

  std::string text(const EngineSnapshot& engine, std::int64_t connections) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace sluice
