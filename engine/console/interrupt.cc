#include "engine/console/interrupt.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<int> last_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void say(std::string_view text) {
  const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(ignored);
}

void on_interrupt(int signal) {
  last_signal = signal;
  if (!interrupted.exchange(true)) return;
  say("sluice: interrupted\n");
  _exit(interrupted_exit_code);
}

void on_abort(int /*signal*/) {
  say("sluice: internal failure: the run was aborted; finished outputs are on disk, please report "
      "the "
      "lines above\n");
  _exit(1);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  // Output that waits for its reader is written whole: stdio loses what an interrupted write() had
  // still to do. Whoever waits for input waits in poll(), which ends all the same.
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // not under nohup
  action.sa_handler = on_abort;
  sigaction(SIGABRT, &action, nullptr);
}

const std::atomic<bool>& interrupt_flag() { return interrupted; }

int take_interrupt() { return interrupted.exchange(false) ? last_signal.load() : 0; }

EndsSoonAfterInterrupt::EndsSoonAfterInterrupt(std::function<void()> clean_up)
    : clean_up_(std::move(clean_up)), thread_([this] { watch(); }) {}

EndsSoonAfterInterrupt::~EndsSoonAfterInterrupt() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  condition_.notify_one();
  thread_.join();
}

void EndsSoonAfterInterrupt::watch() {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return over_; };
  while (!interrupted) {
    if (condition_.wait_for(lock, 100ms, is_over)) return;
  }
  if (condition_.wait_for(lock, 1s, is_over)) return;
  if (clean_up_) clean_up_();
  say("sluice: interrupted\n");
  _exit(interrupted_exit_code);
}

}  // namespace sluice
