#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace sluice {

/// The run's poison flag. A kernel that fails records why, later kernels do nothing, the graph
/// drains, and whoever waits for the results throws the recorded reason. Plain memory without
/// locks, so that two processes can share one.
class Failure {
 public:
  bool happened() const {
    if (const Source source = source_in_use.load(std::memory_order_acquire)) source();
    return state_.load(std::memory_order_acquire) == State::recorded;
  }
  /// Keeps the first reason only, and of it the first 1023 bytes.
  void record(const std::string& reason) noexcept;
  /// Throws Error with the recorded reason, if there is one.
  void rethrow() const;
  void clear();

  /// Looks for failures elsewhere, and records what it finds; called whenever one is asked for.
  using Source = void (*)();
  /// Null: there is nothing to look for.
  static void set_source(Source source) { source_in_use.store(source, std::memory_order_release); }

 private:
  inline static std::atomic<Source> source_in_use{nullptr};

  enum class State : std::uint8_t { none, being_recorded, recorded };
  std::atomic<State> state_{State::none};
  static_assert(std::atomic<State>::is_always_lock_free);
  std::array<char, 1024> reason_{};
};

/// The run's one flag, which a process forked from this one has, too.
Failure& run_failure();

}  // namespace sluice
