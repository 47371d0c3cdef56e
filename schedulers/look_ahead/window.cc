#include "schedulers/look_ahead/window.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::look_ahead {

void Window::set_limits(std::uint64_t bytes, Prefetch ahead) {
  budget_bytes_ = bytes;
  ahead_ = ahead;
}

void Window::end(const Order& half) {
  const auto found = unfinished_.find(half);
  if (found != unfinished_.end() && --found->second == 0) unfinished_.erase(found);
}

void Window::admit(unsigned node, std::vector<starpu_data_handle_t>& bring) {
  while (!waiting_.empty()) {
    Streamed& next = *waiting_.front().data;
    if (!is_near(waiting_.front().half)) return;
    const bool inside = next.admitted.at(node) > 0;
    const std::uint64_t bytes = counted_bytes(next);
    if (!inside && used_bytes_ > 0 && used_bytes_ + bytes > budget_bytes_) return;
    if (!inside) {
      used_bytes_ += bytes;
      bring.push_back(next.handle);
    }
    ++next.admitted.at(node);
    waiting_.pop_front();
  }
}

bool Window::remove(Streamed& data, unsigned node) {
  if (data.admitted.at(node) == 0) {  // the task was faster than the window
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Waiting& each) { return each.data == &data; });
    if (found != waiting_.end()) waiting_.erase(found);
    return true;
  }
  if (--data.admitted.at(node) > 0) return false;
  used_bytes_ -= counted_bytes(data);
  return true;
}

void Window::forget(Streamed& data, unsigned node) {
  std::erase_if(waiting_, [&](const Waiting& each) { return each.data == &data; });
  if (std::exchange(data.admitted.at(node), 0) > 0) used_bytes_ -= counted_bytes(data);
}

/// Norms, biases and the like ride along: a budget is made for weights, and must not miss one for
/// them.
std::uint64_t Window::counted_bytes(const Streamed& data) const {
  return data.bytes < budget_bytes_ / 64 ? 0 : data.bytes;
}

/// Whether so little is still to be done before that half layer that its data may come.
bool Window::is_near(const Order& half) const {
  if (ahead_ == Prefetch::none) return false;
  if (ahead_ == Prefetch::layer || unfinished_.empty()) return true;
  auto last = unfinished_.begin();
  if (std::next(last) != unfinished_.end()) ++last;
  return !(last->first < half);
}

void SlabWindow::set_limits(Prefetch ahead) {
  num_places_ = ahead == Prefetch::none ? 0 : ahead == Prefetch::half_layer ? 1 : most_places;
}

void SlabWindow::add(Slab& slab, const starpu_task* task, bool is_brought) {
  reads_.push_back({&slab, slab.num_stores(), task, is_brought});
}

void SlabWindow::end(const starpu_task* task) {
  for (Read& read : reads_) {
    if (read.task == task) read.task = nullptr;
  }
}

bool SlabWindow::needs(const Slab& slab) const {
  return std::any_of(reads_.begin(), reads_.end(), [&](const Read& read) {
    return read.slab == &slab && read.task != nullptr && read.num_stores <= slab.num_ended_stores();
  });
}

void SlabWindow::admit(std::vector<starpu_data_handle_t>& bring) {
  std::erase_if(reads_, [](const Read& read) { return read.leaves_room(); });
  if (num_places_ == 0) return;
  std::array<const Slab*, most_places> places{};
  auto* const end = places.begin() + num_places_;
  for (Read& read : reads_) {
    auto* const place = std::find_if(places.begin(), end, [&](const Slab* slab) {
      return slab == nullptr || slab == read.slab;
    });
    if (place == end) return;
    *place = read.slab;
    const bool is_past = read.is_brought || read.task == nullptr;
    if (is_past || read.slab->num_ended_stores() < read.num_stores) continue;
    read.is_brought = true;
    bring.push_back(read.slab->handle);
  }
}

/// Only once new KV is stored elsewhere is the memory free without a search for what else could go;
/// and storing it on a disk would wait behind the reads.
bool SlabWindow::Read::leaves_room() const {
  return task == nullptr &&
         (slab->num_ended_stores() > num_stores || slab->num_stores() == num_stores);
}

}  // namespace sluice::look_ahead
