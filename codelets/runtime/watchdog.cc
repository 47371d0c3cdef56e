#include "codelets/runtime/watchdog.h"

#include <fmt/format.h>
#include <starpu.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "codelets/runtime/submissions.h"

namespace sluice {
namespace {

void watch(const std::stop_token& stop, int limit_s,
           const std::function<void(const std::string&)>& stuck) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  std::int64_t ended = 0;
  int seconds_alike = 0;
  // Counted in looks: a process that is stopped for a while is not stuck.
  while (!wake.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; })) {
    if (stop.stop_requested()) return;
    const int unfinished = starpu_task_nsubmitted();
    // As many are often left while others come and go.
    const std::int64_t now = num_submissions() - unfinished;
    seconds_alike = unfinished > 0 && now == ended ? seconds_alike + 1 : 0;
    ended = now;
    if (seconds_alike < limit_s) continue;
    stuck(
        fmt::format("stuck: no task has ended for {} s, and {} are left; finished outputs are kept "
                    "(SLUICE_WATCHDOG_SECONDS sets how long to wait, 0 for ever)",
                    limit_s, unfinished));
    return;
  }
}

}  // namespace

Watchdog::Watchdog(int limit_s, std::function<void(const std::string&)> stuck)
    : thread_([limit_s, stuck = std::move(stuck)](const std::stop_token& stop) {
        watch(stop, limit_s, stuck);
      }) {}

int watchdog_limit_s() {
  const std::string_view text = environment().watchdog_s;
  int limit_s = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), limit_s);
  if (problem != std::errc() || end != text.data() + text.size() || limit_s < 0)
    throw Error("SLUICE_WATCHDOG_SECONDS={}: expected whole seconds, 0 for ever", text);
  return limit_s;
}

}  // namespace sluice
