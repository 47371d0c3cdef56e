#include "codelets/runtime/kernel_times.h"

#include <sys/mman.h>

#include <new>

#include "base/error.h"

namespace sluice {

KernelTotals& KernelTotals::operator+=(const KernelTotals& other) {
  for (std::size_t phase = 0; phase < by_phase.size(); ++phase) {
    for (std::size_t i = 0; i < num_sublayers; ++i) {
      by_phase[phase][i].seconds += other.by_phase[phase][i].seconds;
      by_phase[phase][i].count += other.by_phase[phase][i].count;
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

KernelTotals KernelTimes::totals() const {
  KernelTotals totals;
  for (std::size_t phase = 0; phase < cells_.size(); ++phase) {
    for (std::size_t i = 0; i < num_sublayers; ++i) {
      const Cell& cell = cells_[phase][i];
      totals.by_phase[phase][i] = {
          .seconds = 1e-9 * static_cast<double>(cell.ns.load(std::memory_order_relaxed)),
          .count = cell.count.load(std::memory_order_relaxed)};
    }
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
