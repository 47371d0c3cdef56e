#include "codelets/runtime/kernel_times.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/median.h"

namespace sluice {

KernelTotals& KernelTotals::operator+=(const KernelTotals& other) {
  for (std::size_t phase = 0; phase < by_phase.size(); ++phase) {
    for (std::size_t i = 0; i < num_sublayers; ++i) {
      Entry& mine = by_phase[phase][i];
      const Entry& its = other.by_phase[phase][i];
      const std::int64_t count = mine.count + its.count;
      if (count == 0) continue;
      mine.median_s = (static_cast<double>(mine.count) * mine.median_s +
                       static_cast<double>(its.count) * its.median_s) /
                      static_cast<double>(count);
      mine.seconds += its.seconds;
      mine.count = count;
    }
  }
  return *this;
}

double KernelTotals::seconds() const {
  double sum = 0;
  for (const auto& phase : by_phase) {
    for (const Entry& entry : phase) sum += entry.seconds;
  }
  return sum;
}

KernelTotals::Entry KernelTimes::Cell::entry() const {
  const std::int64_t added = count.load(std::memory_order_relaxed);
  if (added == 0) return {};
  constexpr double nano = 1e-9;
  std::vector<double> latest_s;
  for (std::size_t i = 0; i < std::min(kept, static_cast<std::size_t>(added)); ++i)
    latest_s.push_back(nano * static_cast<double>(latest_ns[i].load(std::memory_order_relaxed)));
  return {.seconds = nano * static_cast<double>(ns.load(std::memory_order_relaxed)),
          .count = added,
          .median_s = median(std::move(latest_s))};
}

KernelTotals KernelTimes::totals() const {
  KernelTotals totals;
  for (std::size_t phase = 0; phase < cells_.size(); ++phase) {
    for (std::size_t i = 0; i < num_sublayers; ++i)
      totals.by_phase[phase][i] = cells_[phase][i].entry();
  }
  return totals;
}

void KernelTimes::reset() {
  for (auto& phase : cells_) {
    for (Cell& cell : phase) {
      cell.ns.store(0, std::memory_order_relaxed);
      cell.count.store(0, std::memory_order_relaxed);
    }
  }
}

void UnmapKernelTimes::operator()(KernelTimes* times) const noexcept {
  times->~KernelTimes();
  munmap(times, sizeof(KernelTimes));
}

SharedKernelTimes make_shared_kernel_times() {
  void* memory =
      mmap(nullptr, sizeof(KernelTimes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("no memory to share with the stand-in accelerator");
  return SharedKernelTimes(new (memory) KernelTimes);
}

}  // namespace sluice
