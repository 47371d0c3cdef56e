#include "engine/replay/timeline.h"

#include <algorithm>

namespace sluice {
namespace {

/// A sum over time, straight between its points.
class RunningSum {
 public:
  void add_point(double time_s, double sum) { points_.emplace_back(time_s, sum); }

  /// At a time that is not ahead of any time asked for already.
  double at(double time_s) {
    while (next_ + 1 < points_.size() && points_[next_].first < time_s) ++next_;
    const auto& [after_s, after] = points_[next_];
    if (next_ == 0 || time_s >= after_s) return after;
    const auto& [before_s, before] = points_[next_ - 1];
    return before + (after - before) * (time_s - before_s) / (after_s - before_s);
  }

  TimeCurve means(std::size_t num_parts) {
    TimeCurve curve;
    const double from_s = points_.front().first;
    const double span_s = points_.back().first - from_s;
    if (!(span_s > 0)) return curve;
    const double part_s = span_s / static_cast<double>(num_parts);
    double before = at(from_s);
    for (std::size_t i = 0; i < num_parts; ++i) {
      const double begin_s = from_s + static_cast<double>(i) * part_s;
      const double sum = at(begin_s + part_s);
      curve.emplace_back(begin_s + part_s / 2, (sum - before) / part_s);
      before = sum;
    }
    return curve;
  }

 private:
  std::vector<std::pair<double, double>> points_;
  std::size_t next_ = 0;
};

}  // namespace

std::vector<SystemCount> system_counts(const ReplayTimeline& timeline) {
  std::vector<SystemCount> counts;
  counts.reserve(timeline.samples.size());
  for (const ReplaySample& sample : timeline.samples)
    counts.push_back({sample.time_s, sample.waiting + sample.running});
  return counts;
}

TimeCurve mean_levels(const ReplayTimeline& timeline, const std::vector<double>& levels,
                      std::size_t num_parts) {
  if (timeline.samples.empty()) return {};
  RunningSum sum;
  double total = 0;
  sum.add_point(timeline.samples.front().time_s, 0);
  for (std::size_t i = 0; i < timeline.samples.size(); ++i) {
    const bool last = i + 1 == timeline.samples.size();
    const double until_s = last ? timeline.end_s : timeline.samples[i + 1].time_s;
    total += levels[i] * (until_s - timeline.samples[i].time_s);
    sum.add_point(until_s, total);
  }
  return sum.means(num_parts);
}

TimeCurve mean_rates(const ReplayTimeline& timeline, const std::vector<double>& sums,
                     std::size_t num_parts) {
  if (timeline.samples.empty()) return {};
  RunningSum sum;
  for (std::size_t i = 0; i < timeline.samples.size(); ++i)
    sum.add_point(timeline.samples[i].time_s, sums[i]);
  sum.add_point(timeline.end_s, sums.back());
  return sum.means(num_parts);
}

}  // namespace sluice
