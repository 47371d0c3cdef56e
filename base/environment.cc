#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/log.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not in every unistd.h

namespace sluice {
namespace {

std::string variable(const char* name, const std::string& otherwise) {
  const char* value =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, before threads
  return value != nullptr && *value != '\0' ? value : otherwise;
}

/// StarPU's variables that change no result.
constexpr std::array<std::string_view, 3> kept_variables = {"STARPU_HOME", "STARPU_SILENT",
                                                            "STARPU_TRACE_BUFFER_SIZE"};

std::vector<std::string> ignored_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with("STARPU_") &&
        std::find(kept_variables.begin(), kept_variables.end(), name) == kept_variables.end())
      names.emplace_back(name);
  }
  return names;
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
        .watchdog_s = variable("SLUICE_WATCHDOG_SECONDS", "600"),
        .trace_mib = variable("STARPU_TRACE_BUFFER_SIZE", "64"),
    };
  }();
  return instance;
}

void ignore_starpu_variables() {
  for (const std::string& name : ignored_variables()) {
    unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): before threads
    logger().warn("{} is ignored: sluice's own options say what StarPU does", name);
  }
}

// NOLINTBEGIN(concurrency-mt-unsafe): no other thread looks at them
void StarpuVariables::set(const std::string& name, const std::string& value) {
  const char* before = std::getenv(name.c_str());
  before_.emplace(before_.begin(), name,
                  before != nullptr ? std::optional<std::string>(before) : std::nullopt);
  setenv(name.c_str(), value.c_str(), 1);
}

void StarpuVariables::set_default(const std::string& name, const std::string& value) {
  if (std::getenv(name.c_str()) == nullptr) set(name, value);
}

StarpuVariables::~StarpuVariables() {
  for (const auto& [name, value] : before_) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
}
// NOLINTEND(concurrency-mt-unsafe)

}  // namespace sluice
