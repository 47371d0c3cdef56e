// A server in front of an engine that only plays one, for clients in other languages:
//   play_server [--port N] [--token-ms N] [--keys FILE]
// Says where it listens on stdout, and ends at SIGTERM. The prompt's own tokens come back as
// output.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "engine/serve/server.h"
#include "scripted_backend.h"
#include "served_model.h"

namespace {

std::atomic<bool> stopped{false};

void on_signal(int /*signal*/) { stopped = true; }

}  // namespace

int main(int argc, char** argv) {
  sluice::ServeSettings settings;
  settings.port = 0;
  settings.model = sluice::test::served_model();
  sluice::test::ScriptedBackend::Script script{.token_delay = std::chrono::milliseconds(5)};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--port") settings.port = static_cast<std::uint16_t>(std::atoi(argv[i + 1]));
    if (name == "--token-ms")
      script.token_delay = std::chrono::milliseconds(std::atoi(argv[i + 1]));
    if (name == "--keys") settings.api_key_file = argv[i + 1];
  }
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  try {
    sluice::test::ScriptedBackend backend(settings.model.tokenizer, script);
    sluice::Server server(settings, backend);
    std::printf("%s\n", server.url().c_str());
    std::fflush(stdout);
    return server.run(stopped);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "play_server: %s\n", error.what());
    return 1;
  }
}
