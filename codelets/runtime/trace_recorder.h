#pragma once

#include <starpu.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/environment.h"
#include "perfmodels/task.h"

namespace sluice {

/// Whether this StarPU was built with FxT, which records traces.
constexpr bool is_starpu_built_with_fxt() {
#ifdef STARPU_USE_FXT
  return true;
#else
  return false;
#endif
}

/// Has StarPU record with FxT what it does, to be read by read_fxt(). One at a time in a process,
/// made before the Runtime and gone after it: StarPU opens its file when it starts, and completes
/// it when it ends. Only what happens between start() and stop() is in it.
class TraceRecorder {
 public:
  /// `folder` exists. Sets what StarPU reads from the environment.
  explicit TraceRecorder(const std::filesystem::path& folder);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  /// StarPU runs, and no task.
  void start();
  /// Waits for all tasks.
  void stop();

  /// Where the record is once the Runtime is gone.
  const std::filesystem::path& file() const { return file_; }
  /// The ids of the requests that were marked since start(), by index: FxT's events are too short
  /// for them.
  std::map<std::int64_t, std::string> request_ids() const;

 private:
  std::filesystem::path file_;
  StarpuVariables variables_;
};

// Marks are lines of text among FxT's events; they say what StarPU does not know. While nothing is
// recorded each costs a load.

/// What a task is for: called right before it is submitted.
void mark_task(starpu_task* task, const TaskTag& tag);
/// A sublayer inside of a stage has ended; called by the worker that runs it.
void mark_sublayer(Sublayer ended);
/// The first task of an iteration is about to be submitted.
void mark_iteration(std::int64_t iteration);
/// Something happened to a request: `what` is one word.
void mark_request(std::string_view what, std::int64_t index, std::string_view id);

}  // namespace sluice
