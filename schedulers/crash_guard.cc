#include "schedulers/crash_guard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

namespace sluice {
namespace {

constexpr std::array<int, 4> crashes = {SIGSEGV, SIGILL, SIGFPE, SIGABRT};

/// What the handler writes. It lies here ready: a handler takes no memory.
std::array<char, 4096> line;
std::size_t line_bytes = 0;
std::array<struct sigaction, crashes.size()> actions_before;
/// The handler's: what crashes may have used up the thread's own.
alignas(16) std::array<char, 64 * 1024> handler_stack;
stack_t stack_before;

void on_crash(int /*signal*/) {
  const ssize_t ignored = write(STDERR_FILENO, line.data(), line_bytes);
  static_cast<void>(ignored);
  _exit(1);
}

}  // namespace

CrashGuard::CrashGuard(const std::string& what) {
  const std::string text = "sluice: " + what;
  line_bytes = std::min(text.size(), line.size() - 1);
  std::copy_n(text.data(), line_bytes, line.data());
  line[line_bytes++] = '\n';
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, &stack_before);
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = on_crash;
  for (std::size_t i = 0; i < crashes.size(); ++i)
    sigaction(crashes[i], &action, &actions_before[i]);
}

CrashGuard::~CrashGuard() {
  for (std::size_t i = 0; i < crashes.size(); ++i)
    sigaction(crashes[i], &actions_before[i], nullptr);
  sigaltstack(&stack_before, nullptr);
}

}  // namespace sluice
