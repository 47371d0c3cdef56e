#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace sluice::test {
namespace {

constexpr int patience_ms = 60'000;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

HttpClient::HttpClient(std::uint16_t port, int receive_buffer_bytes)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0)
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    fail(std::string("connect: ") + std::strerror(errno));
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      buffer_(std::move(other.buffer_)),
      stream_(std::move(other.stream_)) {}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HttpClient::half_close() { shutdown(socket_, SHUT_WR); }

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) fail(std::string("send: ") + std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void HttpClient::request(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& headers) {
  std::string bytes = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers;
  if (!body.empty()) bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  send(bytes + "\r\n" + body);
}

void HttpClient::receive() {
  pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, patience_ms) <= 0) fail("the server says nothing");
  std::array<char, 65536> bytes{};
  const ssize_t received = recv(socket_, bytes.data(), bytes.size(), 0);
  if (received == 0) fail("the server closed the connection");
  if (received < 0) fail(std::string("recv: ") + std::strerror(errno));
  buffer_.append(bytes.data(), static_cast<std::size_t>(received));
}

std::string HttpClient::line() {
  while (true) {
    const std::size_t end = buffer_.find("\r\n");
    if (end == std::string::npos) {
      receive();
      continue;
    }
    std::string text = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return text;
  }
}

std::string HttpClient::exactly(std::size_t bytes) {
  while (buffer_.size() < bytes) receive();
  std::string text = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return text;
}

HttpAnswer HttpClient::head() {
  HttpAnswer answer;
  const std::string status = line();
  if (!status.starts_with("HTTP/1.1 ")) fail("no status line: " + status);
  answer.status = std::stoi(status.substr(9));
  for (std::string header = line(); !header.empty(); header = line()) {
    const std::size_t colon = header.find(": ");
    if (colon == std::string::npos) fail("no header: " + header);
    answer.headers[lower(header.substr(0, colon))] = header.substr(colon + 2);
  }
  return answer;
}

HttpAnswer HttpClient::answer(bool has_body) {
  HttpAnswer answer = head();
  if (has_body && answer.status != 100)
    answer.body = exactly(std::stoul(answer.headers.at("content-length")));
  return answer;
}

std::optional<std::string> HttpClient::event() {
  while (true) {
    if (const std::size_t end = stream_.find("\n\n"); end != std::string::npos) {
      std::string data = stream_.substr(0, end);
      stream_.erase(0, end + 2);
      if (!data.starts_with("data: ")) fail("no event: " + data);
      return data.substr(6);
    }
    const std::size_t bytes = std::stoul(line(), nullptr, 16);
    const std::string chunk = exactly(bytes);
    if (!line().empty()) fail("a chunk is longer than it says");
    if (bytes == 0) return std::nullopt;
    stream_ += chunk;
  }
}

std::vector<std::string> HttpClient::events() {
  std::vector<std::string> all;
  while (auto data = event()) all.push_back(std::move(*data));
  return all;
}

HttpAnswer HttpClient::get(const std::string& path, const std::string& headers) {
  request("GET", path, {}, headers);
  return answer();
}

HttpAnswer HttpClient::post(const std::string& path, const std::string& body,
                            const std::string& headers) {
  request("POST", path, body, headers);
  return answer();
}

bool HttpClient::is_closed_within(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::array<char, 65536> bytes{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
    if (recv(socket_, bytes.data(), bytes.size(), 0) <= 0) return true;
  }
}

}  // namespace sluice::test
