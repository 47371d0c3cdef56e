#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace sluice {

/// The run's poison flag. A kernel that fails records why, later kernels do nothing, the graph
/// drains, and whoever waits for the results throws the recorded reason.
class Failure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }
  /// Keeps the first reason only.
  void record(const std::string& reason) noexcept;
  /// Throws Error with the recorded reason, if there is one.
  void rethrow() const;
  void clear();

 private:
  std::atomic<bool> happened_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

/// The process's one flag: StarPU, too, exists once in a process.
Failure& run_failure();

}  // namespace sluice
