#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace sluice {

/// Exit code after Ctrl-C, as shells expect.
constexpr int interrupted_exit_code = 130;

/// Work that was given up because of Ctrl-C.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

/// Makes Ctrl-C and SIGTERM set the flag; a second one ends the process at once. An abort (StarPU's
/// assertions) says one line of ours after StarPU's own.
void install_signal_handlers();

const std::atomic<bool>& interrupt_flag();

/// The signal that has set the flag, which is clear from now on: the next one sets it again. 0
/// where it was not set.
int take_interrupt();

/// While it lives, work that does not look at the flag, such as a policy that hangs, ends a second
/// after Ctrl-C: `clean_up` is called, on another thread, and the process ends with that code.
class EndsSoonAfterInterrupt {
 public:
  explicit EndsSoonAfterInterrupt(std::function<void()> clean_up = nullptr);
  ~EndsSoonAfterInterrupt();
  EndsSoonAfterInterrupt(const EndsSoonAfterInterrupt&) = delete;
  EndsSoonAfterInterrupt& operator=(const EndsSoonAfterInterrupt&) = delete;

 private:
  void watch();

  std::function<void()> clean_up_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool over_ = false;
  std::thread thread_;  ///< the last: it uses the others
};

}  // namespace sluice
