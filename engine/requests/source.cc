#include "engine/requests/source.h"

#include <utility>

namespace sluice {

std::optional<Request> RequestList::take(double now_s) {
  if (ended() || requests_[next_].arrival_s.value_or(now_s) > now_s) return std::nullopt;
  return std::move(requests_[next_++]);
}

std::optional<double> RequestList::next_arrival_s() const {
  return ended() ? std::nullopt : requests_[next_].arrival_s;
}

void RequestList::wait(RunClock& clock) {
  if (const std::optional<double> arrival_s = next_arrival_s()) clock.sleep_until(*arrival_s);
}

}  // namespace sluice
