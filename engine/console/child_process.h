#pragma once

#include <map>
#include <string>
#include <vector>

namespace sluice {

/// What a program printed, and how it ended.
struct ChildResult {
  int exit_code = 0;  ///< 128 + the signal that ended it
  std::string out;
  std::string err;
};

/// Runs a program to its end. `environment` is added to ours. Throws Error when it cannot be
/// started. May be called from several threads.
ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment);

}  // namespace sluice
