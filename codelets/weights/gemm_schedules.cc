#include "codelets/weights/gemm_schedules.h"

#include <mutex>
#include <shared_mutex>
#include <utility>

namespace sluice {

void GemmSchedules::add(const GemmShape& shape, std::int64_t rows, const GemmSchedule& schedule) {
  shapes_[shape].insert_or_assign(rows, schedule);
}

const GemmSchedule* GemmSchedules::find(const GemmShape& shape, std::int64_t rows) const {
  const auto found = shapes_.find(shape);
  if (found == shapes_.end()) return nullptr;
  const auto next = found->second.upper_bound(rows);
  return next == found->second.begin() ? nullptr : &std::prev(next)->second;
}

namespace {

struct Followed {
  std::shared_mutex mutex;
  GemmSchedules schedules;
};
Followed& followed() {
  static Followed all;
  return all;
}

}  // namespace

void follow_gemm_schedules(GemmSchedules schedules) {
  Followed& now = followed();
  const std::unique_lock lock(now.mutex);
  now.schedules = std::move(schedules);
}

GemmSchedule gemm_schedule_of(const GemmShape& shape, std::int64_t rows) {
  Followed& now = followed();
  const std::shared_lock lock(now.mutex);
  const GemmSchedule* schedule = now.schedules.find(shape, rows);
  return schedule != nullptr ? *schedule : GemmSchedule();
}

}  // namespace sluice
