#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/api_error.h"
#include "engine/serve/backend.h"
#include "engine/serve/connection.h"
#include "engine/serve/metrics.h"
#include "engine/serve/openai_response.h"

namespace sluice {

ApiError refusal_error(Refusal refusal);

/// What exchanges share.
struct ExchangeContext {
  std::shared_ptr<boost::asio::io_context> io;  ///< listeners may outlive the server
  Backend& backend;
  ServeMetrics& metrics;
  std::int64_t next_index = 0;  ///< of the engine's requests
};

/// A client's request on its way through the engine, and the answer on its way back. All calls come
/// from the I/O thread; the engine's come as posted ones.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  /// `on_done` is called once, with the answer complete or the client gone. The context outlives
  /// this.
  Exchange(std::shared_ptr<Connection> connection, OpenAiAnswer answer, ExchangeContext& context,
           std::function<void()> on_done);

  /// Gives the prompts to the engine. To be called once.
  void start(RequestTimes::Clock::time_point arrival);
  /// Ends it with an error, in the stream where that has begun.
  void fail(const ApiError& error);

 private:
  class PromptListener;
  enum class End : std::uint8_t { finished, cancelled, error, refused };

  void on_prompt_logprobs(std::int64_t prompt, std::vector<TokenLogprobs> positions);
  void on_token(std::int64_t prompt, OutputToken token);
  void on_finished(std::int64_t prompt, std::int64_t output, FinishReason reason,
                   const std::string& text);
  void on_refused(Refusal refusal);
  RequestTimes& times_of(std::int64_t prompt, std::int64_t output);
  void send(const std::vector<std::string>& chunks);
  void complete();
  /// Cancels what the engine still has of it. Comes before the last bytes of the answer, so that a
  /// client who has read them finds it done.
  void end(End how);

  std::shared_ptr<Connection> connection_;
  OpenAiAnswer answer_;
  ExchangeContext& context_;
  std::function<void()> on_done_;
  std::vector<std::int64_t> indices_;  ///< of the engine's requests, by prompt
  std::vector<RequestTimes> times_;    ///< by output
  std::int64_t num_finished_ = 0;
  bool is_over_ = false;
};

}  // namespace sluice
