#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/requests/request.h"

namespace sluice {

/// Time as a run has it: real, simulated or imagined.
class RunClock {
 public:
  RunClock() = default;
  virtual ~RunClock() = default;
  RunClock(const RunClock&) = delete;
  RunClock& operator=(const RunClock&) = delete;

  virtual double now_s() const = 0;
  /// Returns at once when that time has passed.
  virtual void sleep_until(double time_s) = 0;
};

/// Where requests come from. "No request now" is one thing, "the input has ended" another. All
/// calls come from the engine's thread.
class RequestSource {
 public:
  RequestSource() = default;
  virtual ~RequestSource() = default;
  RequestSource(const RequestSource&) = delete;
  RequestSource& operator=(const RequestSource&) = delete;

  /// The next request that has arrived by `now_s`, in order of arrival; nothing when none has.
  virtual std::optional<Request> take(double now_s) = 0;
  /// When the next one arrives, where that is known.
  virtual std::optional<double> next_arrival_s() const = 0;
  /// Nothing comes any more.
  virtual bool ended() const = 0;
  /// Returns when a request may have arrived, one was cancelled, or none will come.
  virtual void wait(RunClock& clock) = 0;
  /// Requests that nobody wants any more, by Request::index; each is said once.
  virtual std::vector<std::int64_t> take_cancelled() { return {}; }
};

/// Requests that are there from the start, or arrive at the times that they name, in order.
class RequestList : public RequestSource {
 public:
  /// `requests` in order of their arrival.
  explicit RequestList(std::vector<Request> requests) : requests_(std::move(requests)) {}

  std::optional<Request> take(double now_s) override;
  std::optional<double> next_arrival_s() const override;
  bool ended() const override { return next_ == requests_.size(); }
  void wait(RunClock& clock) override;

 private:
  std::vector<Request> requests_;
  std::size_t next_ = 0;
};

}  // namespace sluice
