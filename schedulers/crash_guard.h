#pragma once

#include <string>

namespace sluice {

/// While one lives, a crash of this process (SIGSEGV, SIGILL, SIGFPE, SIGABRT) is said to be the
/// fault of what is being done: one line on stderr, and exit code 1. One at a time, in one thread.
/// SIGBUS is that of base/watched_files.h.
class CrashGuard {
 public:
  /// `what`: the line without "sluice: " and the end of line.
  explicit CrashGuard(const std::string& what);
  ~CrashGuard();
  CrashGuard(const CrashGuard&) = delete;
  CrashGuard& operator=(const CrashGuard&) = delete;
};

}  // namespace sluice
