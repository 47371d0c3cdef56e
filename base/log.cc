#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>
#include <set>

#include "base/environment.h"

namespace sluice {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("sluice",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("sluice: %l: %v");
    made->set_level(spdlog::level::from_str(environment().log_level));
    return made;
  }();
  return *instance;
}

bool is_first_time(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::scoped_lock lock(mutex);
  return known.insert(text).second;
}

}  // namespace sluice
