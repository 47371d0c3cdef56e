#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perfmodels/task.h"

namespace sluice {

/// A memory that StarPU moves data to and from.
struct TraceNode {
  int id = 0;
  Tier tier = Tier::ddr;
  std::string name;
};

/// What runs tasks, one at a time.
struct TraceWorker {
  int id = 0;
  Device device = Device::cpu;
  int node = 0;  ///< where its data must be
  std::string name;
  /// Its stages are divided among their sublayers as a cost model has it; else each was stamped.
  bool predicted_sublayers = false;
};

/// A sublayer inside of a task.
struct TraceSublayer {
  Sublayer sublayer = Sublayer::embedding;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int32_t layer = -1;  ///< one of its task's

  std::int64_t duration_ns() const { return end_ns - start_ns; }
  bool operator==(const TraceSublayer&) const = default;
};

/// One task that ran. `submit <= start <= end`.
struct TraceTask {
  std::int64_t id = 0;  ///< StarPU's job
  std::string name;     ///< of its codelet
  int worker = 0;
  bool tagged = false;  ///< one of ours; else `tag` says nothing
  TaskTag tag;
  std::int64_t submit_ns = 0;
  std::int64_t ready_ns = 0;  ///< given to the scheduler: nothing was to be waited for any more
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::vector<std::int64_t> after;  ///< ids of the tasks of this trace that it depended on
  /// From start to end without a hole, in the order in which they ran; empty if not `tagged`.
  std::vector<TraceSublayer> sublayers;

  std::int64_t duration_ns() const { return end_ns - start_ns; }
};

/// Data moved from one node to another.
struct TraceTransfer {
  int from = 0;
  int to = 0;
  std::int64_t bytes = 0;
  bool prefetch = false;   ///< before a task waited for it
  std::int64_t task = -1;  ///< the first that used it there, or where it went on; -1: none did
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// Memory in use on a node, from a moment on.
struct TraceMemory {
  int node = 0;
  std::int64_t at_ns = 0;
  std::int64_t bytes = 0;
};

/// Something that happened to an iteration or a request.
struct TraceEvent {
  enum class Kind : std::uint8_t { iteration, request };
  Kind kind = Kind::iteration;
  std::int64_t at_ns = 0;
  std::string text;  ///< "iteration 3", "finished 0 (story)"
};

/// What happened on a machine while a run was traced. Times count from its begin; everything is in
/// the order of its begin.
struct Trace {
  std::int64_t duration_ns = 0;
  std::int64_t num_flushes = 0;  ///< how often the recorder stopped to write its buffer out
  std::int64_t num_lost = 0;     ///< tasks that were submitted, of which the record lacks something
  /// How the CPU's cores were cut up, as `cpu_plan` of --stats, in JSON; empty where nothing says.
  std::string cpu_plan;
  std::vector<TraceNode> nodes;
  std::vector<TraceWorker> workers;
  std::vector<TraceTask> tasks;
  std::vector<TraceTransfer> transfers;
  std::vector<TraceMemory> memory;
  std::vector<TraceEvent> events;
};

/// The text of a trace.jsonl: a line that says how much follows, then a line each.
std::string trace_as_lines(const Trace& trace);
/// Reads it again. `path` is for messages. Throws Error on anything that trace_as_lines() would not
/// write, a file that ends early included, with the line's number.
Trace trace_from_lines(const std::string& text, const std::string& path);

/// The index of each task by id.
class TaskIndex {
 public:
  explicit TaskIndex(const Trace& trace);
  /// Null when there is none.
  const TraceTask* find(std::int64_t id) const;

 private:
  std::vector<const TraceTask*> by_id_;  ///< sorted
};

/// "hbm (CUDA 0)"; "?" for a node that the trace does not have.
std::string node_label(const Trace& trace, int id);
/// "stage 1-6", "lm_head": what a task does.
std::string task_label(const TraceTask& task);
/// "layer 3, iteration 5.0", "layers 0 to 7, ...": where it belongs; the number behind the point is
/// the sub-batch.
std::string task_place(const TraceTask& task);

}  // namespace sluice
