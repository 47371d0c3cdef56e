#pragma once

#include <atomic>

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

}  // namespace sluice
