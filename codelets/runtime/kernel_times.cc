#include "codelets/runtime/kernel_times.h"

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

}  // namespace sluice
