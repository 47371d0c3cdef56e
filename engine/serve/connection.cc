#include "engine/serve/connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "base/log.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

/// A client that sends its next requests early may send so much of them.
constexpr std::size_t most_early_bytes = std::size_t{64} << 10;
constexpr std::size_t watched_bytes = 4096;
/// What a refused body's rest may have, so that its sender gets to read the answer.
constexpr std::size_t most_lingered_bytes = std::size_t{64} << 20;
constexpr std::chrono::milliseconds linger_time{2000};

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_of_http(const boost::system::error_code& error) {
  return error.category() == http::make_error_code(http::error::end_of_stream).category();
}

/// Whom a vanished client's connection would otherwise hold for hours.
void keep_alive(tcp::socket& socket) {
  constexpr int idle_s = 30;
  constexpr int interval_s = 10;
  constexpr int probes = 3;
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {  // where it fails, the kernel's default stays
    setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, idle_s);
  set(TCP_KEEPINTVL, interval_s);
  set(TCP_KEEPCNT, probes);
}

/// The kernel's share of what a slow reader lets gather.
void limit_send_buffer(tcp::socket& socket) {
  constexpr int send_buffer_bytes = 128 << 10;
  boost::system::error_code ignored;
  socket.set_option(asio::socket_base::send_buffer_size(send_buffer_bytes), ignored);
}

}  // namespace

Connection::Connection(tcp::socket socket, const ServeLimits& limits, ConnectionOwner& owner)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      limits_(limits),
      owner_(owner),
      buffer_(static_cast<std::size_t>(limits.header_bytes) + most_early_bytes + watched_bytes) {
  sluice::keep_alive(socket_);
  limit_send_buffer(socket_);
}

// --- reading ---

void Connection::read_request() {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(limits_.header_bytes));
  parser_->body_limit(static_cast<std::uint64_t>(limits_.body_bytes));
  head_ = {};
  streams_ = false;
  answer_is_complete_ = false;
  body_is_read_ = false;
  phase_ = Phase::idle;
  if (buffer_.size() > 0) return read_header();
  set_deadline(limits_.idle);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const Error& error) {
    if (!error && self->phase_ == Phase::idle && self->is_open()) self->read_header();
  });
}

void Connection::read_header() {
  phase_ = Phase::header;
  set_deadline(limits_.header);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, std::size_t) { self->on_header(error); });
}

void Connection::on_header(const Error& error) {
  if (phase_ != Phase::header || !is_open()) return;
  if (error) return reply_to_bad_request(error);
  take_head();
  if (std::optional<HttpReply> refused = owner_.refuse(head_)) {
    body_is_read_ = parser_->is_done();
    phase_ = Phase::answering;
    return reply(*refused);
  }
  if (parser_->content_length() &&
      *parser_->content_length() > static_cast<std::uint64_t>(limits_.body_bytes)) {
    return reply_to_bad_request(http::make_error_code(http::error::body_limit));
  }
  if (!reserve_body()) {
    return reply_and_close(
        {{.status = 503, .param = {}, .code = "too_many_bodies", .retry_after_s = 1},
         "too many large requests at once; try again"});
  }
  read_body();
}

void Connection::take_head() {
  const auto& message = parser_->get();
  const std::string_view target = view(message.target());
  head_ = {.method = std::string(view(message.method_string())),
           .path = std::string(target.substr(0, target.find('?'))),
           .authorization = std::string(view(message[http::field::authorization]))};
  constexpr unsigned http_1_0 = 10;
  version_ = message.version() <= http_1_0 ? HttpVersion::http_1_0 : HttpVersion::http_1_1;
  keep_alive_ = message.keep_alive() && owner_.keeps_connections() ? KeepAlive::yes : KeepAlive::no;
}

bool Connection::reserve_body() {
  if (parser_->is_done()) return true;
  const auto bytes = parser_->content_length()
                         ? static_cast<std::int64_t>(*parser_->content_length())
                         : limits_.body_bytes;
  reservation_ = owner_.reserve(bytes);
  return reservation_ != nullptr;
}

void Connection::read_body() {
  phase_ = Phase::body;
  set_deadline(limits_.body);
  const bool waits_for_word =
      boost::beast::iequals(parser_->get()[http::field::expect], "100-continue");
  if (waits_for_word && !parser_->is_done()) enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  http::async_read(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, std::size_t) { self->on_body(error); });
}

void Connection::on_body(const Error& error) {
  if (phase_ != Phase::body || !is_open()) return;
  if (error) return reply_to_bad_request(error);
  clear_deadline();
  phase_ = Phase::answering;
  body_is_read_ = true;
  HttpRequest request{.head = head_,
                      .body = std::move(parser_->get().body()),
                      .reservation = std::move(reservation_)};
  parser_.reset();
  owner_.handle(shared_from_this(), std::move(request));
  if (!answer_is_complete_ && is_open()) watch();
}

void Connection::reply_to_bad_request(const Error& error) {
  const ApiError::Details late{.status = 408, .param = {}, .code = {}};
  const ApiError::Details bad{.status = 400, .param = {}, .code = {}};
  if (is_late_) return reply_and_close({late, "the request took too long to arrive"});
  if (error == http::error::header_limit)
    return reply_and_close(
        {{.status = 431, .param = {}, .code = {}},
         fmt::format("the request's headers have more than {} bytes", limits_.header_bytes)});
  if (error == http::error::body_limit)
    return reply_and_close(
        {{.status = 413, .param = {}, .code = {}},
         fmt::format("the request's body has more than {} bytes", limits_.body_bytes)});
  if (!is_of_http(error) || error == http::error::end_of_stream ||
      error == http::error::partial_message)
    return close();
  reply_and_close({bad, fmt::format("not HTTP/1.1: {}", error.message())});
}

void Connection::reply_and_close(const ApiError& error) {
  keep_alive_ = KeepAlive::no;
  body_is_read_ = false;
  phase_ = Phase::answering;
  reply(reply_with(error));
}

// --- the client's end, while an answer is being made ---

void Connection::watch() {
  if (watches_ || buffer_.size() >= most_early_bytes) return;
  watches_ = true;
  socket_.async_read_some(buffer_.prepare(watched_bytes),
                          [self = shared_from_this()](const Error& error, std::size_t bytes) {
                            self->on_watched(error, bytes);
                          });
}

void Connection::on_watched(const Error& error, std::size_t bytes) {
  watches_ = false;
  buffer_.commit(bytes);
  if (!is_open()) return;
  if (phase_ == Phase::lingering) return error ? close() : linger();
  const bool is_over = phase_ != Phase::answering;  // on_answered() stopped the watch
  if (is_over && (!error || error == asio::error::operation_aborted)) return read_request();
  if (!error) return watch();
  if (is_over || !answer_is_complete_) return lose();
  keep_alive_ = KeepAlive::no;  // it has sent its last request, and may still read
}

// --- answering ---

void Connection::reply(const HttpReply& reply) {
  if (!is_open() || phase_ != Phase::answering) return;
  owner_.on_answer(head_, reply.status);
  if (!body_is_read_ || !owner_.keeps_connections()) keep_alive_ = KeepAlive::no;
  answer_is_complete_ = true;
  enqueue(http_bytes(reply, keep_alive_, head_.method != "HEAD"));
}

void Connection::begin_stream() {
  if (!is_open() || streams_) return;
  constexpr int ok = 200;
  owner_.on_answer(head_, ok);
  streams_ = true;
  if (version_ == HttpVersion::http_1_0) keep_alive_ = KeepAlive::no;  // its end is the end
  enqueue(event_stream_head(version_, keep_alive_));
}

void Connection::send_event(std::string_view data) {
  if (!is_open()) return;
  enqueue(stream_piece(version_, server_sent_event(data)));
  const std::size_t unsent = gathered_.size() + outgoing_.size() - sent_;
  if (unsent > static_cast<std::size_t>(limits_.unsent_bytes)) {
    logger().info("a client reads too slowly: {} bytes have gathered", unsent);
    lose();
  }
}

void Connection::end_stream() {
  if (!is_open()) return;
  answer_is_complete_ = true;
  if (!owner_.keeps_connections()) keep_alive_ = KeepAlive::no;
  enqueue(stream_end(version_));
  if (!writes_) on_answered();
}

void Connection::enqueue(std::string_view bytes) {
  gathered_ += bytes;
  if (!writes_ && !gathered_.empty()) write();
}

void Connection::write() {
  if (sent_ == outgoing_.size()) {
    outgoing_ = std::exchange(gathered_, {});
    sent_ = 0;
  }
  writes_ = true;
  if (phase_ == Phase::answering) set_deadline(limits_.stalled_write);
  socket_.async_write_some(asio::buffer(outgoing_.data() + sent_, outgoing_.size() - sent_),
                           [self = shared_from_this()](const Error& error, std::size_t bytes) {
                             self->on_written(error, bytes);
                           });
}

void Connection::on_written(const Error& error, std::size_t bytes) {
  writes_ = false;
  if (!is_open()) return;
  if (error) return lose();
  sent_ += bytes;
  if (sent_ < outgoing_.size() || !gathered_.empty()) return write();
  outgoing_.clear();
  sent_ = 0;
  if (phase_ != Phase::answering) return;  // "100 Continue"
  clear_deadline();
  if (answer_is_complete_) on_answered();
}

void Connection::on_answered() {
  on_lost_ = nullptr;
  if (keep_alive_ == KeepAlive::no) return linger();
  if (!watches_) return read_request();
  phase_ = Phase::idle;
  socket_.cancel();  // on_watched() goes on
}

/// Takes in what the client still sends: closing at once would make it lose the answer.
void Connection::linger() {
  Error ignored;
  if (phase_ != Phase::lingering) {
    phase_ = Phase::lingering;
    parser_.reset();
    buffer_.clear();
    set_deadline(linger_time);
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    if (watches_) return;
  }
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(watched_bytes),
                          [self = shared_from_this()](const Error& error, std::size_t bytes) {
                            self->lingered_bytes_ += bytes;
                            if (error || self->lingered_bytes_ > most_lingered_bytes)
                              return self->close();
                            if (self->is_open()) self->linger();
                          });
}

void Connection::lose() {
  const auto on_lost = std::exchange(on_lost_, nullptr);
  close();
  if (on_lost) on_lost();
}

void Connection::close() {
  if (!is_open()) return;
  Error ignored;
  clear_deadline();
  socket_.close(ignored);
  reservation_.reset();
  owner_.on_closed(*this);
}

// --- deadlines ---

void Connection::set_deadline(std::chrono::milliseconds after) {
  ++deadline_number_;
  timer_.expires_after(after);
  timer_.async_wait([self = weak_from_this(), number = deadline_number_](const Error& error) {
    const auto connection = error ? nullptr : self.lock();
    // It may have been cleared while this call was on its way.
    if (connection && connection->deadline_number_ == number) connection->on_deadline();
  });
}

void Connection::clear_deadline() {
  ++deadline_number_;
  timer_.cancel();
}

void Connection::on_deadline() {
  if (!is_open()) return;
  switch (phase_) {
    case Phase::header:
    case Phase::body:
      is_late_ = true;
      socket_.cancel();  // on_header() or on_body() goes on
      return;
    case Phase::answering:
      logger().info("a client takes nothing");
      return lose();
    case Phase::idle:
    case Phase::lingering:
      return close();
  }
}

}  // namespace sluice
