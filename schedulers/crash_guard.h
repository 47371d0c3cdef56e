#pragma once

#include <array>
#include <string_view>

namespace sluice {

/// While one lives, a crash of its thread (SIGSEGV, SIGILL, SIGFPE, SIGABRT) is said to be the
/// fault of what is being done: one line on stderr, and exit code 1. The innermost one counts.
/// Crashes elsewhere end the process as ever. SIGBUS is that of base/watched_files.h.
class CrashGuard {
 public:
  using Words = std::array<std::string_view, 6>;

  /// The line without "sluice: " and the end of line, in pieces that outlive it. Cheap: only the
  /// first one installs handlers, which stay.
  explicit CrashGuard(const Words& words);
  ~CrashGuard();
  /// Takes the signals back from who has taken them since, as StarPU and SimGrid do when they
  /// start. Of crashes outside of any guard they are told.
  static void stay_in_charge();
  CrashGuard(const CrashGuard&) = delete;
  CrashGuard& operator=(const CrashGuard&) = delete;

 private:
  friend struct CrashHandler;

  Words words_;
  const CrashGuard* outer_;
};

}  // namespace sluice
