#include "base/environment.h"

#include <cstdlib>

namespace sluice {
namespace {

std::string variable(const char* name, const std::string& otherwise) {
  const char* value =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, before threads
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

const Environment& environment() {
  static const Environment instance = [] {
    const std::string home_cache = variable("HOME", "/tmp") + "/.cache";
    return Environment{
        .log_level = variable("SLUICE_LOG", "warn"),
        .cache_dir = variable("SLUICE_CACHE", variable("XDG_CACHE_HOME", home_cache) + "/sluice"),
        .policy_path = variable("SLUICE_POLICY_PATH", ""),
    };
  }();
  return instance;
}

}  // namespace sluice
