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
    const std::string home = variable("HOME", "/tmp");
    return Environment{
        .log_level = variable("SLUICE_LOG", "warn"),
        .cache_dir =
            variable("SLUICE_CACHE", variable("XDG_CACHE_HOME", home + "/.cache") + "/sluice"),
        .data_dir = variable("XDG_DATA_HOME", home + "/.local/share") + "/sluice",
        .policy_path = variable("SLUICE_POLICY_PATH", ""),
    };
  }();
  return instance;
}

}  // namespace sluice
