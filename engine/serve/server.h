#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/serve/backend.h"
#include "engine/serve/serve_settings.h"

namespace sluice {

/// An OpenAI-compatible HTTP server in front of an engine: one I/O thread for all connections.
class Server {
 public:
  /// Opens the port. Throws Error: a port in use, an unknown host, unreadable API keys. Settings
  /// are copied, the backend outlives this.
  Server(const ServeSettings& settings, Backend& backend);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  /// "http://127.0.0.1:8080"
  std::string url() const;

  /// Serves on this thread until `stop` is set, then drains: accepts nothing, lets what runs finish
  /// for the time that the settings give, and cancels the rest. Returns the process's exit code: 0,
  /// or 1 behind fail(). To be called once.
  int run(const std::atomic<bool>& stop);

  /// The engine has failed: every request ends with this error, and run() returns. From any thread,
  /// while this lives.
  void fail(const std::string& message);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Raises the process's limit of open files as far as its user may, for one connection each.
void raise_open_files_limit();

}  // namespace sluice
