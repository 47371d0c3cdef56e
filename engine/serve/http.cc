#include "engine/serve/http.h"

#include <boost/beast/http/status.hpp>

namespace sluice {
namespace {

std::string status_line(int status) {
  const auto reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(status)));
  return fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
}

std::string_view connection_header(KeepAlive keep_alive) {
  return keep_alive == KeepAlive::yes ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
}

}  // namespace

HttpReply reply_with(const ApiError& error) {
  const ApiError::Details& details = error.details();
  HttpReply reply{.status = details.status, .body = error.body() + "\n", .headers = {}};
  if (details.retry_after_s > 0)
    reply.headers.emplace_back("Retry-After", std::to_string(details.retry_after_s));
  if (!details.allowed.empty()) reply.headers.emplace_back("Allow", details.allowed);
  constexpr int unauthorized = 401;
  if (details.status == unauthorized) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

std::string http_bytes(const HttpReply& reply, KeepAlive keep_alive, bool with_body) {
  std::string bytes = status_line(reply.status);
  bytes += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", reply.content_type,
                       reply.body.size());
  for (const auto& [name, value] : reply.headers) bytes += fmt::format("{}: {}\r\n", name, value);
  bytes += connection_header(keep_alive);
  bytes += "\r\n";
  if (with_body) bytes += reply.body;
  return bytes;
}

std::string event_stream_head(HttpVersion version, KeepAlive keep_alive) {
  std::string bytes = status_line(200);
  bytes += "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
  if (version == HttpVersion::http_1_1) bytes += "Transfer-Encoding: chunked\r\n";
  bytes += connection_header(keep_alive);
  return bytes + "\r\n";
}

std::string stream_piece(HttpVersion version, std::string_view text) {
  if (version == HttpVersion::http_1_0) return std::string(text);
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

std::string stream_end(HttpVersion version) {
  return version == HttpVersion::http_1_0 ? "" : "0\r\n\r\n";
}

std::string server_sent_event(std::string_view data) { return fmt::format("data: {}\n\n", data); }

}  // namespace sluice
