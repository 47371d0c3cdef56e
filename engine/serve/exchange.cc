#include "engine/serve/exchange.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace sluice {

namespace asio = boost::asio;

ApiError refusal_error(Refusal refusal) {
  constexpr int soon_s = 1;
  constexpr int later_s = 10;
  switch (refusal) {
    case Refusal::queue_full:
      return {{.status = 429, .param = {}, .code = "queue_full", .retry_after_s = soon_s},
              "the queue is full; try again"};
    case Refusal::too_long:
      return {{.status = 400, .param = {}, .code = "context_length_exceeded"},
              "the prompt and its output need more KV cache than this server has; shorten them"};
    case Refusal::loading:
      return {{.status = 503, .param = {}, .code = "loading", .retry_after_s = later_s},
              "the model is being loaded; try again"};
    case Refusal::draining:
      return {{.status = 503, .param = {}, .code = "shutting_down", .retry_after_s = later_s},
              "the server is shutting down"};
    case Refusal::none:
      break;
  }
  return {{.status = 500, .param = {}, .code = {}}, "the engine gave the request back"};
}

/// Hands the engine's calls over to the I/O thread. It owns nothing of the exchange, which must not
/// end on the engine's thread.
class Exchange::PromptListener final : public Listener {
 public:
  PromptListener(std::shared_ptr<asio::io_context> io, std::weak_ptr<Exchange> exchange,
                 std::int64_t prompt)
      : io_(std::move(io)), exchange_(std::move(exchange)), prompt_(prompt) {}

  void on_prompt_logprobs(std::vector<TokenLogprobs> positions) override {
    hand_over([prompt = prompt_, positions = std::move(positions)](Exchange& exchange) mutable {
      exchange.on_prompt_logprobs(prompt, std::move(positions));
    });
  }
  void on_token(OutputToken token) override {
    hand_over([prompt = prompt_, token = std::move(token)](Exchange& exchange) mutable {
      exchange.on_token(prompt, std::move(token));
    });
  }
  void on_finished(std::int64_t output, FinishReason reason, std::string text) override {
    hand_over([prompt = prompt_, output, reason, text = std::move(text)](Exchange& exchange) {
      exchange.on_finished(prompt, output, reason, text);
    });
  }
  void on_refused(Refusal refusal) override {
    hand_over([refusal](Exchange& exchange) { exchange.on_refused(refusal); });
  }
  void on_error(std::string message) override {
    hand_over([message = std::move(message)](Exchange& exchange) {
      exchange.fail({{.status = 500, .param = {}, .code = {}}, message});
    });
  }

 private:
  template <typename Call>
  void hand_over(Call call) {
    asio::post(*io_, [exchange = exchange_, call = std::move(call)]() mutable {
      const auto alive = exchange.lock();
      if (alive && !alive->is_over_) call(*alive);
    });
  }

  std::shared_ptr<asio::io_context> io_;
  std::weak_ptr<Exchange> exchange_;
  std::int64_t prompt_;
};

Exchange::Exchange(std::shared_ptr<Connection> connection, OpenAiAnswer answer,
                   ExchangeContext& context, std::function<void()> on_done)
    : connection_(std::move(connection)),
      answer_(std::move(answer)),
      context_(context),
      on_done_(std::move(on_done)),
      times_(static_cast<std::size_t>(answer_.request().num_outputs())) {}

void Exchange::start(RequestTimes::Clock::time_point arrival) {
  for (RequestTimes& times : times_) times.arrival = arrival;
  connection_->set_on_lost([self = weak_from_this()] {
    const auto exchange = self.lock();
    if (exchange && !exchange->is_over_) exchange->end(End::cancelled);
  });
  context_.metrics.count_prompt_tokens(answer_.prompt_tokens());
  for (Request request : answer_.request().prompts) {
    const std::int64_t prompt = request.index;
    request.index = context_.next_index++;
    request.id = fmt::format("{}-{}", answer_.id(), prompt);
    indices_.push_back(request.index);
    const Refusal refusal = context_.backend.submit(
        std::move(request),
        std::make_shared<PromptListener>(context_.io, weak_from_this(), prompt));
    if (refusal == Refusal::none) continue;
    indices_.pop_back();
    return on_refused(refusal);
  }
}

void Exchange::on_prompt_logprobs(std::int64_t prompt, std::vector<TokenLogprobs> positions) {
  answer_.add_prompt_logprobs(prompt, std::move(positions));
}

RequestTimes& Exchange::times_of(std::int64_t prompt, std::int64_t output) {
  const std::int64_t each = answer_.request().prompts.front().num_outputs;
  return times_.at(static_cast<std::size_t>(prompt * each + output));
}

void Exchange::on_token(std::int64_t prompt, OutputToken token) {
  RequestTimes& times = times_of(prompt, token.output);
  times.last_token = RequestTimes::Clock::now();
  if (times.output_tokens++ == 0) {
    times.first_token = times.last_token;
    context_.metrics.observe_first_token(
        std::chrono::duration<double>(times.first_token - times.arrival).count());
  }
  context_.metrics.count_output_token();
  send(answer_.add_token(prompt, std::move(token)));
}

void Exchange::on_finished(std::int64_t prompt, std::int64_t output, FinishReason reason,
                           const std::string& text) {
  if (reason == FinishReason::interrupted) {
    return fail({{.status = 500, .param = {}, .code = {}}, "the engine stopped the request"});
  }
  const RequestTimes& times = times_of(prompt, output);
  if (times.output_tokens > 0) context_.metrics.observe_output(times);
  context_.metrics.count_output(finish_name(reason));
  ++num_finished_;
  send(answer_.finish_output(prompt, output, reason, text));
  if (!is_over_ && answer_.is_finished()) complete();
}

void Exchange::on_refused(Refusal refusal) {
  const ApiError error = refusal_error(refusal);
  if (connection_->has_begun_stream()) return fail(error);  // another prompt of it has begun
  end(End::refused);
  connection_->reply(reply_with(error));
}

void Exchange::send(const std::vector<std::string>& chunks) {
  if (chunks.empty()) return;
  connection_->begin_stream();
  for (const std::string& chunk : chunks) connection_->send_event(chunk);
}

void Exchange::complete() {
  end(End::finished);
  if (answer_.request().stream) {
    if (const auto usage = answer_.usage_chunk()) connection_->send_event(*usage);
    connection_->send_event("[DONE]");
    connection_->end_stream();
  } else {
    connection_->reply({.body = answer_.whole(), .headers = {}});
  }
}

void Exchange::fail(const ApiError& error) {
  if (is_over_) return;
  end(End::error);
  if (connection_->has_begun_stream()) {
    connection_->send_event(error.body());
    connection_->send_event("[DONE]");
    connection_->end_stream();
  } else {
    connection_->reply(reply_with(error));
  }
}

void Exchange::end(End how) {
  if (std::exchange(is_over_, true)) return;
  connection_->set_on_lost(nullptr);
  static constexpr const char* names[] = {"stop", "cancelled", "error", "refused"};
  for (std::int64_t i = num_finished_; i < std::ssize(times_); ++i)
    context_.metrics.count_output(names[static_cast<std::size_t>(how)]);
  if (how != End::finished) {
    for (const std::int64_t index : indices_) context_.backend.cancel(index);
  }
  on_done_();
}

}  // namespace sluice
