#include "engine/trace/trace_analysis.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"

namespace sluice {
namespace {

struct Interval {
  std::int64_t start = 0;
  std::int64_t end = 0;
};
using Intervals = std::vector<Interval>;

/// Sorted, and those that touch as one.
Intervals merged(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  Intervals result;
  for (const Interval& interval : intervals) {
    if (!result.empty() && interval.start <= result.back().end) {
      result.back().end = std::max(result.back().end, interval.end);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

std::int64_t length(const Intervals& merged_ones) {
  std::int64_t sum = 0;
  for (const Interval& interval : merged_ones) sum += interval.end - interval.start;
  return sum;
}

/// Of two merged lists.
std::int64_t common_length(const Intervals& a, const Intervals& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum +=
        std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].start, b[j].start));
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return sum;
}

/// What of `intervals` lies between `start` and `end`, merged.
Intervals clipped(const Intervals& intervals, std::int64_t start, std::int64_t end) {
  Intervals result;
  for (const Interval& interval : intervals) {
    const Interval part{std::max(interval.start, start), std::min(interval.end, end)};
    if (part.start < part.end) result.push_back(part);
  }
  return merged(std::move(result));
}

/// The transfers that brought a task's data.
std::unordered_map<std::int64_t, Intervals> transfers_by_task(const Trace& trace) {
  std::unordered_map<std::int64_t, Intervals> result;
  for (const TraceTransfer& transfer : trace.transfers) {
    if (transfer.task >= 0) result[transfer.task].push_back({transfer.start_ns, transfer.end_ns});
  }
  return result;
}

/// When a task that could run waited for its data, from a moment on.
Intervals data_waits(const TraceTask& task,
                     const std::unordered_map<std::int64_t, Intervals>& transfers,
                     std::int64_t from_ns) {
  const auto found = transfers.find(task.id);
  if (found == transfers.end()) return {};
  return clipped(found->second, std::max(from_ns, task.ready_ns), task.start_ns);
}

/// Explains gaps.
class GapFinder {
 public:
  explicit GapFinder(const Trace& trace)
      : trace_(trace), index_(trace), transfers_(transfers_by_task(trace)) {}

  std::vector<TraceGap> find() const {
    std::vector<TraceGap> gaps;
    for (const TraceWorker& worker : trace_.workers) {
      std::int64_t free_since = 0;
      for (const TraceTask& task : trace_.tasks) {
        if (task.worker != worker.id) continue;
        if (task.start_ns > free_since) gaps.push_back(explain(free_since, task));
        free_since = std::max(free_since, task.end_ns);
      }
      if (free_since < trace_.duration_ns)
        gaps.push_back({.worker = worker.id, .start_ns = free_since, .end_ns = trace_.duration_ns});
    }
    return gaps;
  }

 private:
  /// Cuts the gap at the moments when the next task was submitted and could run.
  TraceGap explain(std::int64_t start, const TraceTask& next) const {
    TraceGap gap{
        .worker = next.worker, .start_ns = start, .end_ns = next.start_ns, .next = next.id};
    const std::int64_t submitted = std::max(start, next.submit_ns);
    const std::int64_t ready = std::max(submitted, next.ready_ns);
    const std::int64_t data = length(data_waits(next, transfers_, ready));
    const std::array<std::pair<std::int64_t, GapCause>, 4> parts = {
        {{submitted - start, GapCause::nothing_submitted},
         {ready - submitted, GapCause::dependency},
         {data, GapCause::data},
         {next.start_ns - ready - data, GapCause::scheduling}}};
    gap.cause = std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
                  return a.first < b.first;
                })->second;
    if (gap.cause == GapCause::dependency) gap.waited_for = last_before(next);
    return gap;
  }

  std::int64_t last_before(const TraceTask& task) const {
    const TraceTask* last = nullptr;
    for (const std::int64_t id : task.after) {
      const TraceTask* before = index_.find(id);
      if (before != nullptr && (last == nullptr || before->end_ns > last->end_ns)) last = before;
    }
    return last != nullptr ? last->id : -1;
  }

  const Trace& trace_;
  TaskIndex index_;
  std::unordered_map<std::int64_t, Intervals> transfers_;
};

void add_sublayers(const TraceTask& task, std::array<std::int64_t, num_sublayers>& sums) {
  for (const TraceSublayer& at : task.sublayers)
    sums.at(static_cast<std::size_t>(at.sublayer)) += at.duration_ns();
}

}  // namespace

std::string_view to_string(GapCause cause) {
  switch (cause) {
    case GapCause::nothing_submitted:
      return "nothing submitted";
    case GapCause::dependency:
      return "dependency";
    case GapCause::data:
      return "data";
    case GapCause::scheduling:
      return "scheduling";
  }
  return "?";
}

std::vector<WorkerUse> worker_use(const Trace& trace) {
  std::vector<WorkerUse> uses;
  for (const TraceWorker& worker : trace.workers) {
    WorkerUse& use = uses.emplace_back();
    use.worker = worker;
    Intervals busy;
    for (const TraceTask& task : trace.tasks) {
      if (task.worker != worker.id) continue;
      ++use.num_tasks;
      busy.push_back({task.start_ns, task.end_ns});
      add_sublayers(task, use.sublayer_ns);
    }
    Intervals transfers;
    for (const TraceTransfer& transfer : trace.transfers) {
      if (transfer.from == worker.node || transfer.to == worker.node)
        transfers.push_back({transfer.start_ns, transfer.end_ns});
    }
    busy = merged(std::move(busy));
    transfers = merged(std::move(transfers));
    use.busy_ns = length(busy);
    use.idle_ns = trace.duration_ns - use.busy_ns;
    use.transfer_ns = length(transfers);
    use.overlap_ns = common_length(busy, transfers);
  }
  return uses;
}

std::vector<LinkUse> link_use(const Trace& trace) {
  std::map<std::pair<int, int>, Intervals> links;
  std::map<std::pair<int, int>, LinkUse> uses;
  for (const TraceTransfer& transfer : trace.transfers) {
    const std::pair<int, int> link(transfer.from, transfer.to);
    links[link].push_back({transfer.start_ns, transfer.end_ns});
    LinkUse& use = uses[link];
    use.from = transfer.from;
    use.to = transfer.to;
    ++use.num_transfers;
    use.bytes += transfer.bytes;
  }
  Intervals busy;
  for (const TraceTask& task : trace.tasks) busy.push_back({task.start_ns, task.end_ns});
  busy = merged(std::move(busy));
  std::vector<LinkUse> result;
  for (auto& [link, use] : uses) {
    const Intervals active = merged(std::move(links[link]));
    use.busy_ns = length(active);
    use.overlap_ns = common_length(active, busy);
    result.push_back(use);
  }
  return result;
}

std::vector<TraceGap> longest_gaps(const Trace& trace, std::size_t count) {
  std::vector<TraceGap> gaps = GapFinder(trace).find();
  std::stable_sort(gaps.begin(), gaps.end(), [](const TraceGap& a, const TraceGap& b) {
    return a.duration_ns() > b.duration_ns();
  });
  if (gaps.size() > count) gaps.resize(count);
  return gaps;
}

std::vector<std::int64_t> iterations_of(const Trace& trace) {
  std::set<std::int64_t> found;
  for (const TraceTask& task : trace.tasks) {
    if (task.tagged) found.insert(task.tag.iteration);
  }
  return {found.begin(), found.end()};
}

IterationPath critical_path(const Trace& trace, std::int64_t iteration) {
  struct Step {
    const TraceTask* task = nullptr;
    std::int64_t transfer_ns = 0;
    std::int64_t length_ns = 0;  ///< of the longest chain that ends here
    const Step* before = nullptr;
  };
  const auto transfers = transfers_by_task(trace);
  std::unordered_map<std::int64_t, Step> steps;
  const Step* last = nullptr;
  IterationPath path;
  path.iteration = iteration;
  for (const TraceTask& task : trace.tasks) {  // those that a task depended on began before it
    if (!task.tagged || task.tag.iteration != iteration) continue;
    const Intervals waits = data_waits(task, transfers, task.ready_ns);
    const std::int64_t start = waits.empty() ? task.start_ns : waits.front().start;
    path.start_ns = path.num_tasks++ == 0 ? start : std::min(path.start_ns, start);
    path.end_ns = std::max(path.end_ns, task.end_ns);
    Step& step = steps[task.id];
    step.task = &task;
    step.transfer_ns = length(waits);
    for (const std::int64_t id : task.after) {
      const auto before = steps.find(id);
      if (before == steps.end() || before->second.task == &task) continue;
      if (step.before == nullptr || before->second.length_ns > step.before->length_ns)
        step.before = &before->second;
    }
    step.length_ns = task.duration_ns() + step.transfer_ns +
                     (step.before != nullptr ? step.before->length_ns : 0);
    if (last == nullptr || step.length_ns > last->length_ns) last = &step;
  }
  if (last == nullptr) throw Error("the trace has no iteration {}", iteration);
  for (const Step* step = last; step != nullptr; step = step->before) {
    path.chain.push_back(step->task->id);
    path.task_ns += step->task->duration_ns();
    path.transfer_ns += step->transfer_ns;
    add_sublayers(*step->task, path.sublayer_ns);
  }
  std::reverse(path.chain.begin(), path.chain.end());
  return path;
}

}  // namespace sluice
