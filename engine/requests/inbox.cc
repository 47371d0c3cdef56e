#include "engine/requests/inbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice {

void RequestInbox::put(Request request) {
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return;
    requests_.push_back(std::move(request));
  }
  changed_.notify_one();
}

void RequestInbox::cancel(std::int64_t index) {
  {
    const std::scoped_lock lock(mutex_);
    cancelled_.push_back(index);
  }
  changed_.notify_one();
}

void RequestInbox::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

std::optional<Request> RequestInbox::take(double now_s) {
  const std::scoped_lock lock(mutex_);
  if (requests_.empty()) return std::nullopt;
  Request request = std::move(requests_.front());
  requests_.pop_front();
  if (!request.arrival_s) request.arrival_s = now_s;
  return request;
}

bool RequestInbox::ended() const {
  const std::scoped_lock lock(mutex_);
  return closed_ && requests_.empty();
}

void RequestInbox::wait(RunClock& /*clock*/) {
  // The engine looks at its interrupt flag in between.
  constexpr std::chrono::milliseconds most(50);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most,
                    [&] { return closed_ || !requests_.empty() || !cancelled_.empty(); });
}

std::vector<std::int64_t> RequestInbox::take_cancelled() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(cancelled_, {});
}

}  // namespace sluice
