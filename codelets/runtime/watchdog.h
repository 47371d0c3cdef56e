#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice {

/// Looks once a second whether submitted tasks go on. While it lives StarPU runs.
class Watchdog {
 public:
  /// Calls `stuck`, on a thread of its own, with what is to be said, when tasks are unfinished and
  /// none of them has ended for `limit_s` seconds of the process's being awake.
  Watchdog(int limit_s, std::function<void(const std::string& problem)> stuck);

 private:
  std::jthread thread_;
};

/// Seconds without a sign of life after which a run is ended: SLUICE_WATCHDOG_SECONDS, or 600; 0:
/// never. Throws Error when that is no number.
int watchdog_limit_s();

}  // namespace sluice
