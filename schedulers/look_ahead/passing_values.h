#pragma once

#include <starpu.h>

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedulers/look_ahead/order.h"

namespace sluice::look_ahead {

/// Values between tasks (hidden states and the like, which live nowhere else) beside a GPU's
/// memory: those of mini-batches that wait for their next task while others compute.
class PassingValues {
 public:
  using Handles = std::vector<starpu_data_handle_t>;

  static bool is_one(starpu_data_handle_t handle);

  /// A task to come, and those that it uses.
  void begin(const starpu_task* task, const TaskTag& tag, Handles values);
  /// The task is done; gives those that it used.
  Handles end(const starpu_task* task);

  /// What others want of a value's place before it is used again: the most that, at a time, values
  /// that wait in main memory need, where tasks of two other sub-batches on the GPU come first.
  /// What a task is the last to use makes room for those behind it. Bytes.
  std::int64_t wanted_before(starpu_data_handle_t value, std::int16_t sub_batch,
                             unsigned node) const;
  /// All that is there and will be used.
  std::int64_t bytes_on(unsigned node) const;
  /// Those of the GPU's next task behind this one: where it waits for a slab, say, they may come
  /// even so. Only what waits in main memory, and for no other task before.
  Handles coming(const starpu_task* running, unsigned node) const;

 private:
  /// A task's place, and which one it is of those that share the place.
  using Key = std::pair<Order, std::uint64_t>;
  struct Task {
    std::int16_t sub_batch;
    Device device;
    Handles values;
  };

  std::uint64_t num_begun_ = 0;
  std::map<Key, Task> tasks_;  ///< submitted and not executed
  std::unordered_map<const starpu_task*, std::map<Key, Task>::const_iterator> by_task_;
  /// By value: the tasks that will use it, as they were submitted.
  std::unordered_map<starpu_data_handle_t, std::deque<std::uint64_t>> uses_;
};

}  // namespace sluice::look_ahead
