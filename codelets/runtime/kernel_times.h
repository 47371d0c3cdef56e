#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "codelets/runtime/trace_recorder.h"
#include "perfmodels/task.h"

namespace sluice {

/// Values of Sublayer.
inline constexpr std::size_t num_sublayers = static_cast<std::size_t>(last_sublayer_value) + 1;

/// Time inside of kernels.
struct KernelTotals {
  struct Entry {
    double seconds = 0;
    std::int64_t count = 0;  ///< kernels
    /// Of one kernel: the median of the latest KernelTimes::kept, of several workers the mean of
    /// theirs. What else the machine does makes single kernels take several times as long.
    double median_s = 0;
  };
  std::array<std::array<Entry, num_sublayers>, 2> by_phase{};

  const Entry& of(Phase phase, Sublayer sublayer) const {
    return by_phase[static_cast<std::size_t>(phase)][static_cast<std::size_t>(sublayer)];
  }
  KernelTotals& operator+=(const KernelTotals& other);
  double seconds() const;  ///< of all
};

/// What a worker's kernels took, by phase and sublayer, also where several run as one stage. The
/// worker adds, others may read.
class KernelTimes {
 public:
  using Clock = std::chrono::steady_clock;
  /// Kernels of a phase and sublayer whose times are kept one by one, beside the sum of all.
  static constexpr std::size_t kept = 64;

  void add(Phase phase, Sublayer sublayer, Clock::duration spent) noexcept {
    Cell& cell = cells_[static_cast<std::size_t>(phase)][static_cast<std::size_t>(sublayer)];
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    const std::int64_t before = cell.count.fetch_add(1, std::memory_order_relaxed);
    cell.ns.fetch_add(ns, std::memory_order_relaxed);
    cell.latest_ns[static_cast<std::size_t>(before) % kept].store(ns, std::memory_order_relaxed);
  }
  KernelTotals totals() const;
  void reset();

 private:
  struct Cell {
    std::atomic<std::int64_t> ns{0};
    std::atomic<std::int64_t> count{0};
    std::array<std::atomic<std::int64_t>, kept> latest_ns{};

    KernelTotals::Entry entry() const;
  };
  std::array<std::array<Cell, num_sublayers>, 2> cells_{};
};

/// Gives back memory that two processes share.
struct UnmapKernelTimes {
  void operator()(KernelTimes* times) const noexcept;
};
using SharedKernelTimes = std::unique_ptr<KernelTimes, UnmapKernelTimes>;
/// That a process forked from now on adds to as well. Throws Error when there is no memory.
SharedKernelTimes make_shared_kernel_times();

/// Stamps the sublayers of one task, one after the other: from one end to the next; in a trace,
/// too.
class SublayerClock {
 public:
  /// `times` may be null: then nothing is kept.
  SublayerClock(KernelTimes* times, Phase phase)
      : times_(times), phase_(phase), last_(KernelTimes::Clock::now()) {}
  /// From now on, without what has passed: it was kept elsewhere.
  void restart() noexcept { last_ = KernelTimes::Clock::now(); }
  /// A sublayer has ended.
  void end_of(Sublayer sublayer) noexcept {
    if (times_ == nullptr) return;
    const KernelTimes::Clock::time_point now = KernelTimes::Clock::now();
    times_->add(phase_, sublayer, now - last_);
    last_ = now;
    mark_sublayer(sublayer);
  }

 private:
  KernelTimes* times_;
  Phase phase_;
  KernelTimes::Clock::time_point last_;
};

}  // namespace sluice
