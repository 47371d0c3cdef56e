#pragma once

#include <string>

namespace sluice {

/// Every environment variable that Sluice looks at, read once.
struct Environment {
  std::string log_level;    ///< SLUICE_LOG, default "warn"
  std::string cache_dir;    ///< SLUICE_CACHE, else XDG_CACHE_HOME/sluice, else HOME/.cache/sluice
  std::string data_dir;     ///< XDG_DATA_HOME/sluice, else HOME/.local/share/sluice
  std::string policy_path;  ///< SLUICE_POLICY_PATH: folders of policies, separated by colons
};

const Environment& environment();

}  // namespace sluice
