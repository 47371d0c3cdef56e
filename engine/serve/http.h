#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/serve/api_error.h"

namespace sluice {

/// What is known of a request before its body is read.
struct HttpHead {
  std::string method;
  std::string path;  ///< without the query
  std::string authorization;
};

struct HttpRequest {
  HttpHead head;
  std::string body;
  std::shared_ptr<void> reservation;  ///< of the body's bytes, while it lives
};

/// A whole answer.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  ///< further ones
};

HttpReply reply_with(const ApiError& error);

enum class KeepAlive : std::uint8_t { no, yes };
/// Of what a client understands: HTTP/1.0 has no chunks.
enum class HttpVersion : std::uint8_t { http_1_0, http_1_1 };

/// A whole answer's bytes; `with_body` is false for HEAD.
std::string http_bytes(const HttpReply& reply, KeepAlive keep_alive, bool with_body);

/// The head of a stream of server-sent events.
std::string event_stream_head(HttpVersion version, KeepAlive keep_alive);
/// A piece of a stream's body, and its end.
std::string stream_piece(HttpVersion version, std::string_view text);
std::string stream_end(HttpVersion version);

/// One server-sent event. `data` has no line breaks.
std::string server_sent_event(std::string_view data);

}  // namespace sluice
