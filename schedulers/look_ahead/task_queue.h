#pragma once

#include <starpu.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>

#include "schedulers/look_ahead/order.h"

namespace sluice::look_ahead {

/// Tasks in order; of equal ones the first that came.
class TaskQueue {
 public:
  void push(const Order& order, starpu_task* task) {
    const auto behind =
        std::upper_bound(items_.begin(), items_.end(), order,
                         [](const Order& value, const Item& item) { return value < item.order; });
    items_.insert(behind, {order, task});
    size_.store(items_.size(), std::memory_order_release);
  }
  /// The first that `fits`, or null.
  template <typename Fits>
  starpu_task* pop(const Fits& fits) {
    const auto found = std::find_if(items_.begin(), items_.end(),
                                    [&](const Item& item) { return fits(item.task); });
    if (found == items_.end()) return nullptr;
    starpu_task* task = found->task;
    items_.erase(found);
    size_.store(items_.size(), std::memory_order_release);
    return task;
  }
  /// The next one, or null.
  starpu_task* front() const { return items_.empty() ? nullptr : items_.front().task; }
  /// May be asked without the lock.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

 private:
  struct Item {
    Order order;
    starpu_task* task = nullptr;
  };
  std::deque<Item> items_;
  std::atomic<std::size_t> size_{0};
};

}  // namespace sluice::look_ahead
