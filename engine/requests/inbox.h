#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/requests/source.h"

namespace sluice {

/// Requests that other threads put in while the engine runs. Not in a simulation, whose threads
/// wait in another way.
class RequestInbox : public RequestSource {
 public:
  /// From any thread; nothing comes in behind close().
  void put(Request request);
  void cancel(std::int64_t index);
  void close();

  std::optional<Request> take(double now_s) override;
  std::optional<double> next_arrival_s() const override { return std::nullopt; }
  bool ended() const override;
  void wait(RunClock& clock) override;
  std::vector<std::int64_t> take_cancelled() override;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;
  std::vector<std::int64_t> cancelled_;
  bool closed_ = false;
};

}  // namespace sluice
