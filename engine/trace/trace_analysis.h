#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codelets/runtime/kernel_times.h"
#include "engine/trace/trace.h"

namespace sluice {

/// What one worker did.
struct WorkerUse {
  TraceWorker worker;
  std::int64_t num_tasks = 0;
  std::int64_t busy_ns = 0;      ///< inside of tasks
  std::int64_t idle_ns = 0;      ///< the rest of the trace
  std::int64_t transfer_ns = 0;  ///< while data moved to or from its memory
  std::int64_t overlap_ns = 0;   ///< of that, while it was busy
  std::array<std::int64_t, num_sublayers> sublayer_ns{};
};

/// What one direction between two memories did.
struct LinkUse {
  int from = 0;
  int to = 0;
  std::int64_t num_transfers = 0;
  std::int64_t bytes = 0;
  std::int64_t busy_ns = 0;     ///< while at least one transfer was under way
  std::int64_t overlap_ns = 0;  ///< of that, while at least one worker was busy
};

/// Why a worker did nothing.
enum class GapCause : std::uint8_t {
  nothing_submitted,  ///< its next task did not exist yet, or there was none
  dependency,         ///< its next task waited for others
  data,               ///< its next task could run, but its data was still on the way
  scheduling,         ///< its next task could run: StarPU's own time
};
std::string_view to_string(GapCause cause);

/// A worker's time between two of its tasks, or before the first or after the last.
struct TraceGap {
  int worker = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  GapCause cause = GapCause::nothing_submitted;  ///< what took the most of it
  std::int64_t next = -1;                        ///< the task that ended it; -1: none
  std::int64_t waited_for = -1;                  ///< dependency: its predecessor that ended last

  std::int64_t duration_ns() const { return end_ns - start_ns; }
};

/// One iteration: from the first task's start, or that of the transfer that it waited for, to the
/// last one's end, and the longest chain of tasks
/// each of which depended on the one before. Its length is what the iteration would have taken with
/// workers in plenty and nothing between tasks but the transfers that they waited for.
struct IterationPath {
  std::int64_t iteration = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t num_tasks = 0;
  std::vector<std::int64_t> chain;                        ///< tasks, first to last
  std::int64_t task_ns = 0;                               ///< in the chain's tasks
  std::int64_t transfer_ns = 0;                           ///< in the transfers that they waited for
  std::array<std::int64_t, num_sublayers> sublayer_ns{};  ///< of task_ns

  std::int64_t duration_ns() const { return end_ns - start_ns; }
  std::int64_t length_ns() const { return task_ns + transfer_ns; }
};

/// In the order of `trace.workers`.
std::vector<WorkerUse> worker_use(const Trace& trace);
/// Of the links that moved something, by nodes.
std::vector<LinkUse> link_use(const Trace& trace);
/// The longest ones of all workers, longest first, at most `count`.
std::vector<TraceGap> longest_gaps(const Trace& trace, std::size_t count);
/// In rising order.
std::vector<std::int64_t> iterations_of(const Trace& trace);
/// Throws Error when the trace has no such iteration.
IterationPath critical_path(const Trace& trace, std::int64_t iteration);

}  // namespace sluice
