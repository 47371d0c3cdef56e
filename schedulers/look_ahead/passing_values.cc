#include "schedulers/look_ahead/passing_values.h"

#include <algorithm>
#include <utility>

#include "schedulers/look_ahead/window.h"

namespace sluice::look_ahead {
namespace {

/// In main memory alone; what no task has made yet is nowhere.
bool is_elsewhere(starpu_data_handle_t value, unsigned node) {
  return starpu_data_is_on_node(value, node) == 0 &&
         starpu_data_is_on_node(value, STARPU_MAIN_RAM) != 0;
}

std::int64_t size_of(starpu_data_handle_t value) {
  return static_cast<std::int64_t>(starpu_data_get_size(value));
}

}  // namespace

bool PassingValues::is_one(starpu_data_handle_t handle) {
  return starpu_data_get_home_node(handle) < 0 &&
         starpu_data_get_size(handle) >= smallest_streamed_bytes;
}

void PassingValues::begin(const starpu_task* task, const TaskTag& tag, Handles values) {
  const Key key{Order::of(tag), num_begun_++};
  for (starpu_data_handle_t value : values) uses_[value].push_back(key.second);
  by_task_[task] = tasks_.emplace(key, Task{tag.sub_batch, tag.device, std::move(values)}).first;
}

PassingValues::Handles PassingValues::end(const starpu_task* task) {
  const auto found = by_task_.find(task);
  if (found == by_task_.end()) return {};
  const std::uint64_t number = found->second->first.second;
  Handles values = found->second->second.values;
  tasks_.erase(found->second);
  by_task_.erase(found);
  for (starpu_data_handle_t value : values) {
    const auto its = uses_.find(value);
    if (its == uses_.end()) continue;  // the task had it twice
    std::erase(its->second, number);
    if (its->second.empty()) uses_.erase(its);
  }
  return values;
}

std::int64_t PassingValues::wanted_before(starpu_data_handle_t value, std::int16_t sub_batch,
                                          unsigned node) const {
  const auto found = uses_.find(value);
  if (found == uses_.end() || starpu_data_is_on_node(value, node) == 0) return 0;
  std::int64_t most_bytes = 0;
  std::int64_t wanted_bytes = 0;
  std::int64_t freed_bytes = 0;
  std::vector<std::int16_t> others;
  for (const auto& [key, task] : tasks_) {
    if (key.second == found->second.front()) break;
    if (task.device != Device::gpu || task.sub_batch == sub_batch) continue;
    if (std::find(others.begin(), others.end(), task.sub_batch) == others.end())
      others.push_back(task.sub_batch);
    for (starpu_data_handle_t wanted : task.values) {
      if (is_elsewhere(wanted, node)) wanted_bytes += size_of(wanted);
    }
    if (others.size() >= 2) most_bytes = std::max(most_bytes, wanted_bytes);
    // A task's values come while the one before it computes.
    wanted_bytes -= std::exchange(freed_bytes, 0);
    for (starpu_data_handle_t used : task.values) {
      if (uses_.at(used).back() == key.second) freed_bytes += size_of(used);
    }
  }
  return most_bytes;
}

std::int64_t PassingValues::bytes_on(unsigned node) const {
  std::int64_t bytes = 0;
  for (const auto& [value, uses] : uses_) {
    if (starpu_data_is_on_node(value, node) != 0) bytes += size_of(value);
  }
  return bytes;
}

PassingValues::Handles PassingValues::coming(const starpu_task* running, unsigned node) const {
  Handles found;
  const auto its = by_task_.find(running);
  if (its == by_task_.end()) return found;
  auto next = its->second;
  do {
    if (++next == tasks_.end()) return found;
  } while (next->second.device != Device::gpu);
  for (starpu_data_handle_t value : next->second.values) {
    if (uses_.at(value).front() == next->first.second && is_elsewhere(value, node))
      found.push_back(value);
  }
  return found;
}

}  // namespace sluice::look_ahead
