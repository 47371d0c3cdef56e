#include "schedulers/crash_guard.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

namespace sluice {

/// It takes no memory: what crashed may have been taking some.
struct CrashHandler {
  static constexpr std::array<int, 4> crashes = {SIGSEGV, SIGILL, SIGFPE, SIGABRT};

  static thread_local const CrashGuard* innermost;
  static std::array<struct sigaction, crashes.size()> actions_before;
  /// Of the first thread: what crashes may have used up its own.
  alignas(16) static std::array<char, 64 * 1024> stack;

  static void install() {
    stack_t ours{};
    ours.ss_sp = stack.data();
    ours.ss_size = stack.size();
    sigaltstack(&ours, nullptr);
    take_signals();
  }

  static void take_signals() {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_ONSTACK;
    action.sa_handler = on_crash;
    for (std::size_t i = 0; i < crashes.size(); ++i) {
      struct sigaction now {};
      sigaction(crashes[i], nullptr, &now);
      if (now.sa_handler == on_crash) continue;
      actions_before[i] = now;
      sigaction(crashes[i], &action, nullptr);
    }
  }

  static void on_crash(int signal) {
    if (innermost == nullptr) {
      leave_to_others(signal);
      return;
    }
    say("sluice: ");
    for (const std::string_view word : innermost->words_) say(word);
    say("\n");
    _exit(1);
  }

 private:
  static void say(std::string_view text) {
    const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
    static_cast<void>(ignored);
  }

  /// What faulted faults again; who aborts has to be told again.
  static void leave_to_others(int signal) {
    const auto at = static_cast<std::size_t>(std::find(crashes.begin(), crashes.end(), signal) -
                                             crashes.begin());
    sigaction(signal, &actions_before[at], nullptr);
    if (signal == SIGABRT) raise(signal);
  }
};

thread_local const CrashGuard* CrashHandler::innermost = nullptr;
std::array<struct sigaction, CrashHandler::crashes.size()> CrashHandler::actions_before;
alignas(16) std::array<char, 64 * 1024> CrashHandler::stack;

CrashGuard::CrashGuard(const Words& words) : words_(words), outer_(CrashHandler::innermost) {
  static const bool installed = (CrashHandler::install(), true);
  static_cast<void>(installed);
  CrashHandler::innermost = this;
}

void CrashGuard::stay_in_charge() { CrashHandler::take_signals(); }

CrashGuard::~CrashGuard() { CrashHandler::innermost = outer_; }

}  // namespace sluice
