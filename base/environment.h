#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// Every environment variable that Sluice looks at, read once.
struct Environment {
  std::string log_level;    ///< SLUICE_LOG, default "warn"
  std::string cache_dir;    ///< SLUICE_CACHE, else XDG_CACHE_HOME/sluice, else HOME/.cache/sluice
  std::string data_dir;     ///< XDG_DATA_HOME/sluice, else HOME/.local/share/sluice
  std::string policy_path;  ///< SLUICE_POLICY_PATH: folders of policies, separated by colons
  std::string watchdog_s;   ///< SLUICE_WATCHDOG_SECONDS, default "600" (watchdog.h)
  std::string trace_mib;    ///< STARPU_TRACE_BUFFER_SIZE, StarPU's default "64"
};

const Environment& environment();

/// Takes StarPU's variables out of the environment, with a line in the log for each: how tasks are
/// scheduled, and what a machine has, is said by our own options. STARPU_HOME, STARPU_SILENT and
/// STARPU_TRACE_BUFFER_SIZE stay. Call it before there are threads.
void ignore_starpu_variables();

/// What StarPU takes from the environment only: variables that are as they were before once this
/// ends. Make it, set them and end it while StarPU has no threads, which look at them.
class StarpuVariables {
 public:
  StarpuVariables() = default;
  ~StarpuVariables();
  StarpuVariables(const StarpuVariables&) = delete;
  StarpuVariables& operator=(const StarpuVariables&) = delete;

  void set(const std::string& name, const std::string& value);
  /// Unless the user has set it.
  void set_default(const std::string& name, const std::string& value);

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;  ///< the last set first
};

}  // namespace sluice
