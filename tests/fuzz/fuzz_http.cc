// Any bytes from a client that then says no more: whatever the server answers is HTTP, it closes
// the connection, and answers the next client.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "engine/serve/server.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

/// An engine whose queue is always full.
class FullBackend final : public sluice::Backend {
 public:
  sluice::Refusal submit(sluice::Request, std::shared_ptr<sluice::Listener>) override {
    return sluice::Refusal::queue_full;
  }
  void cancel(std::int64_t) override {}
  void drain() override {}
  sluice::EngineSnapshot snapshot() const override {
    sluice::EngineSnapshot made;
    made.state = sluice::EngineSnapshot::State::ready;
    return made;
  }
};

class FuzzedServer {
 public:
  FuzzedServer() : server_(settings(), backend_), thread_([this] { server_.run(stop_); }) {}
  ~FuzzedServer() {
    stop_ = true;
    thread_.join();
  }
  FuzzedServer(const FuzzedServer&) = delete;
  FuzzedServer& operator=(const FuzzedServer&) = delete;

  std::uint16_t port() const { return server_.port(); }

 private:
  static sluice::ServeSettings settings() {
    sluice::ServeSettings made;
    made.port = 0;
    made.model.name = "fuzz";
    made.model.vocab_size = 100;
    made.model.max_model_len = 100;
    return made;
  }

  FullBackend backend_;
  sluice::Server server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// What the server sends until it closes the connection.
std::string answer_to(std::string_view bytes, std::uint16_t port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  while (!bytes.empty()) {
    const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // refused in the middle
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  shutdown(connection, SHUT_WR);
  std::string answer;
  std::array<char, 65536> buffer{};
  while (true) {
    constexpr int patience_ms = 20'000;
    pollfd waiting{.fd = connection, .events = POLLIN, .revents = 0};
    require(poll(&waiting, 1, patience_ms) == 1);
    const ssize_t received = recv(connection, buffer.data(), buffer.size(), 0);
    if (received <= 0) break;
    answer.append(buffer.data(), static_cast<std::size_t>(received));
  }
  close(connection);
  return answer;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FuzzedServer server;
  const std::string answer = answer_to({reinterpret_cast<const char*>(data), size}, server.port());
  require(answer.empty() || answer.starts_with("HTTP/1.1 "));
  const std::string health =
      answer_to("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", server.port());
  require(health.starts_with("HTTP/1.1 200 "));
  return 0;
}
