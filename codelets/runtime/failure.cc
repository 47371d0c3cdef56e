#include "codelets/runtime/failure.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/error.h"

namespace sluice {

void Failure::record(const std::string& reason) noexcept {
  State none = State::none;
  if (!state_.compare_exchange_strong(none, State::being_recorded)) return;
  const std::size_t size = std::min(reason.size(), reason_.size() - 1);
  std::copy_n(reason.begin(), size, reason_.begin());
  reason_.at(size) = '\0';
  state_.store(State::recorded, std::memory_order_release);
}

void Failure::rethrow() const {
  if (happened()) throw Error("{}", reason_.data());
}

void Failure::clear() { state_.store(State::none, std::memory_order_release); }

Failure& run_failure() {
  static Failure& failure = []() -> Failure& {
    void* shared =
        mmap(nullptr, sizeof(Failure), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::bad_alloc();
    return *new (shared) Failure;
  }();
  return failure;
}

}  // namespace sluice
