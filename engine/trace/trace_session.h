#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "codelets/runtime/trace_recorder.h"
#include "engine/trace/fxt.h"

namespace sluice {

/// While it lives, a reader of our output that goes away is an error that is caught, and does not
/// end the process.
class OutliveReader {
 public:
  OutliveReader();
  ~OutliveReader();
  OutliveReader(const OutliveReader&) = delete;
  OutliveReader& operator=(const OutliveReader&) = delete;

 private:
  void (*before_)(int);
};

/// What --trace DIR asks for; without a folder, nothing happens. It is made, if needed, and must
/// hold no trace. What it holds at the end: trace.jsonl (which `sluice trace` reads), paje.trace,
/// dag.dot, perfetto.json.
class TraceSession {
 public:
  /// Throws Error when the folder cannot be written or holds a trace; UsageError for "".
  explicit TraceSession(const std::optional<std::string>& folder);
  ~TraceSession();
  TraceSession(const TraceSession&) = delete;
  TraceSession& operator=(const TraceSession&) = delete;

  /// Runs `run`, which makes a Runtime and lets it go, and writes the files, also when it throws,
  /// as where nobody reads its output any more. Where they cannot be written none is left. Says on
  /// stderr where they are unless `quiet`; that something is missing, always.
  int around(const std::function<int()>& run, bool quiet);

  /// While it lives, what the Runtime does is recorded.
  class Recording {
   public:
    explicit Recording(TraceRecorder* recorder) : recorder_(recorder) {
      if (recorder_ != nullptr) recorder_->start();
    }
    ~Recording() {
      if (recorder_ != nullptr) recorder_->stop();
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    TraceRecorder* recorder_;
  };
  /// By what read_fxt() divides stages that nothing stamps, once `run` has ended.
  void divide_stages_by(std::shared_ptr<const CostModel> costs, MemoryPlan memory);
  /// How the CPU's cores are cut up in the run, which the trace says then: see Trace::cpu_plan.
  void computed_by(std::string cpu_plan) { cpu_plan_ = std::move(cpu_plan); }
  /// Once, inside of `run`, while no task runs.
  Recording record() {
    started_ = true;
    return Recording(recorder_.get());
  }

 private:
  void write_files(bool quiet);
  Trace write_all_files() const;
  void remove_files() const;

  std::string folder_;
  std::unique_ptr<TraceRecorder> recorder_;
  StageParts parts_;
  std::string cpu_plan_;
  bool started_ = false;
  bool made_folder_ = false;
  int lock_ = -1;  ///< the folder, held for this run alone; -1: it cannot be
};

}  // namespace sluice
