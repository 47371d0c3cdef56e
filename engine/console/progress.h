#pragma once

#include <chrono>
#include <string>

namespace sluice {

/// A progress bar on stderr: only on a terminal, only for work longer than half a second, gone when
/// done.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done` of `total` units; `note` stands behind the bar.
  void update(double done, double total, const std::string& note = "");
  void clear();

 private:
  std::string label_;
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace sluice
