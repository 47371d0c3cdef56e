#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
};

/// A client over a plain socket, that can also misbehave. Throws std::runtime_error where the
/// server does, or says nothing for a minute.
class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes);
  void request(const std::string& method, const std::string& path, const std::string& body = {},
               const std::string& headers = {});

  /// A whole answer; `has_body` is false behind HEAD.
  HttpAnswer answer(bool has_body = true);
  /// The head of a stream.
  HttpAnswer head();
  /// The next event's data of a chunked stream; nothing at its end.
  std::optional<std::string> event();
  /// All events that come.
  std::vector<std::string> events();

  HttpAnswer get(const std::string& path, const std::string& headers = {});
  HttpAnswer post(const std::string& path, const std::string& body,
                  const std::string& headers = {});

  /// Whether the server closes the connection within this time; what it sends is thrown away.
  bool is_closed_within(std::chrono::milliseconds time);
  void half_close();
  void close();

 private:
  std::string line();
  std::string exactly(std::size_t bytes);
  void receive();

  int socket_ = -1;
  std::string buffer_;  ///< received, not yet read
  std::string stream_;  ///< of chunks, not yet read
};

}  // namespace sluice::test
