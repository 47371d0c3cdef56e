#include "base/log.h"

#include <spdlog/sinks/base_sink.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

#include "base/environment.h"
#include "base/text.h"

namespace sluice {
namespace {

/// Each message is one line on stderr, whatever it quotes.
class OneLineSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text =
        one_line(std::string_view(message.payload.data(), message.payload.size()));
    spdlog::details::log_msg copy = message;
    copy.payload = text;
    spdlog::memory_buf_t line;
    formatter_->format(copy, line);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
  void flush_() override { std::fflush(stderr); }
};

}  // namespace

spdlog::logger& logger() {
  // never destroyed: a static object's thread may still log when the process ends
  static spdlog::logger& instance = []() -> spdlog::logger& {
    auto* made = new spdlog::logger("sluice", std::make_shared<OneLineSink>());
    made->set_pattern("sluice: %l: %v");
    made->set_level(spdlog::level::from_str(environment().log_level));
    return *made;
  }();
  return instance;
}

bool is_first_time(const std::string& text) {
  static auto& mutex = *new std::mutex;  // never destroyed, as above
  static auto& known = *new std::set<std::string>;
  const std::scoped_lock lock(mutex);
  return known.insert(text).second;
}

}  // namespace sluice
