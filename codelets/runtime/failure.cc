#include "codelets/runtime/failure.h"

#include "base/error.h"

namespace sluice {

void Failure::record(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (happened_.load(std::memory_order_relaxed)) return;
  try {
    reason_ = reason;
  } catch (...) {  // out of memory for the text: the flag alone must do
    reason_.clear();
  }
  happened_.store(true, std::memory_order_release);
}

void Failure::rethrow() const {
  if (!happened()) return;
  const std::lock_guard lock(mutex_);
  throw Error("{}", reason_);
}

void Failure::clear() {
  const std::lock_guard lock(mutex_);
  reason_.clear();
  happened_.store(false, std::memory_order_release);
}

Failure& run_failure() {
  static Failure failure;
  return failure;
}

}  // namespace sluice
