#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http.h"
#include "engine/serve/serve_settings.h"

namespace sluice {

class Connection;

/// Who answers the requests of connections.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  /// The answer to a request of which only the head is known; nothing: read its body.
  virtual std::optional<HttpReply> refuse(const HttpHead& head) = 0;
  /// Memory for a body, until the last copy is gone; null: there is none now.
  virtual std::shared_ptr<void> reserve(std::int64_t body_bytes) = 0;
  /// To be answered, now or later, by reply() or by begin_stream() and what follows.
  virtual void handle(std::shared_ptr<Connection> connection, HttpRequest request) = 0;
  /// False: each connection is closed behind its answer.
  virtual bool keeps_connections() const = 0;
  virtual void on_answer(const HttpHead& head, int status) = 0;
  virtual void on_closed(Connection& connection) = 0;
};

/// A client's connection: one request after another, each with one answer. All calls come from the
/// I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// The owner and the limits outlive this.
  Connection(boost::asio::ip::tcp::socket socket, const ServeLimits& limits,
             ConnectionOwner& owner);

  void start() { read_request(); }

  /// Answers the request.
  void reply(const HttpReply& reply);
  /// Answers it with events, the first of which may come later.
  void begin_stream();
  void send_event(std::string_view data);
  void end_stream();

  /// Called once, where the client goes away or takes nothing before the answer is complete.
  void set_on_lost(std::function<void()> on_lost) { on_lost_ = std::move(on_lost); }

  bool is_open() const { return socket_.is_open(); }
  /// It waits for a request of which nothing has come.
  bool is_idle() const { return phase_ == Phase::idle; }
  /// An answer is being made, or is on its way.
  bool is_answering() const { return phase_ == Phase::answering; }
  /// Whether the answer's first bytes are out, so that its status cannot change.
  bool has_begun_stream() const { return streams_; }
  void close();

 private:
  enum class Phase : std::uint8_t { idle, header, body, answering, lingering };
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read_request();
  void read_header();
  void on_header(const Error& error);
  void take_head();
  bool reserve_body();
  void read_body();
  void on_body(const Error& error);
  void reply_to_bad_request(const Error& error);
  void reply_and_close(const ApiError& error);

  /// Looks for the client's end while its answer is being made.
  void watch();
  void on_watched(const Error& error, std::size_t bytes);

  void enqueue(std::string_view bytes);
  void write();
  void on_written(const Error& error, std::size_t bytes);
  void on_answered();
  void linger();
  void lose();

  void set_deadline(std::chrono::milliseconds after);
  void clear_deadline();
  void on_deadline();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::uint64_t deadline_number_ = 0;
  const ServeLimits& limits_;
  ConnectionOwner& owner_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpHead head_;
  std::shared_ptr<void> reservation_;
  HttpVersion version_ = HttpVersion::http_1_1;
  Phase phase_ = Phase::idle;
  KeepAlive keep_alive_ = KeepAlive::yes;
  bool is_late_ = false;
  bool body_is_read_ = false;
  bool watches_ = false;
  bool streams_ = false;
  bool answer_is_complete_ = false;
  std::string gathered_;  ///< not yet being written
  std::string outgoing_;  ///< being written
  std::size_t sent_ = 0;  ///< of outgoing_
  bool writes_ = false;
  std::size_t lingered_bytes_ = 0;
  std::function<void()> on_lost_;
};

}  // namespace sluice
