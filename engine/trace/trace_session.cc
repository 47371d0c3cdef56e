#include "engine/trace/trace_session.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "engine/trace/fxt.h"
#include "engine/trace/trace_formats.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> file_names = {"trace.jsonl", "paje.trace", "dag.dot",
                                                   "perfetto.json"};

void check_holds_no_trace(const fs::path& folder) {
  for (const char* name : file_names) {
    if (fs::exists(folder / name)) {
      throw Error("--trace {}: it holds {} of an earlier run; give another folder, or delete it",
                  folder.string(), name);
    }
  }
}

/// StarPU takes any number, and with 0 writes out its buffer for ever.
void check_buffer_size() {
  constexpr int most_mib = 16384;
  const std::string_view text = environment().trace_mib;
  int mib = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (problem != std::errc() || end != text.data() + text.size() || mib < 1 || mib > most_mib) {
    throw Error("STARPU_TRACE_BUFFER_SIZE={}: expected whole MiB, 1 to {}; unset it for 64", text,
                most_mib);
  }
}

/// A file that goes when it has been read, or cannot be: FxT's names every process of the machine.
class RemovedAtEnd {
 public:
  explicit RemovedAtEnd(fs::path path) : path_(std::move(path)) {}
  ~RemovedAtEnd() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;

 private:
  fs::path path_;
};

/// FxT says by itself, in words of its own, that it cannot write: what read_fxt() then finds is
/// said instead.
class WithoutFxtsWords {
 public:
  WithoutFxtsWords() : before_(stderr) {
    cookie_io_functions_t operations{};
    operations.write = [](void* before, const char* text, std::size_t size) {
      if (!std::string_view(text, size).starts_with("write buffer: "))
        std::fwrite(text, 1, size, static_cast<FILE*>(before));
      return static_cast<ssize_t>(size);
    };
    FILE* stream = fopencookie(before_, "w", operations);
    if (stream == nullptr) return;
    std::setvbuf(stream, nullptr, _IONBF, 0);
    stderr = stream;
  }
  /// The stream stays open: a logger that was made meanwhile writes to it.
  ~WithoutFxtsWords() { stderr = before_; }
  WithoutFxtsWords(const WithoutFxtsWords&) = delete;
  WithoutFxtsWords& operator=(const WithoutFxtsWords&) = delete;

 private:
  FILE* before_;
};

}  // namespace

OutliveReader::OutliveReader() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
OutliveReader::~OutliveReader() { std::signal(SIGPIPE, before_); }

TraceSession::TraceSession(const std::optional<std::string>& folder) {
  if (!folder) return;
  if (!has_fxt()) {
    throw Error(
        "--trace: this sluice was built without FxT (SLUICE_FXT=OFF), which records traces; leave "
        "--trace out, or build it with FxT");
  }
  folder_ = *folder;
  if (folder_.empty()) throw UsageError("--trace needs the name of a folder");
  check_buffer_size();
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error))
    throw Error("--trace {}: it is a file; give a folder", folder_);
  check_holds_no_trace(folder_);
  made_folder_ =
      mkdir(folder_.c_str(), 0700) == 0;  // it holds requests' names, and StarPU's record
  if (!made_folder_ && errno != EEXIST)
    throw Error("--trace {}: cannot make the folder: {}", folder_, std::strerror(errno));
  check_writable((fs::path(folder_) / file_names[0]).string());
  lock_ = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const bool is_held = errno == EWOULDBLOCK;  // else the file system knows no locks
    close(std::exchange(lock_, -1));
    if (is_held)
      throw Error("--trace {}: another run is recording into it; give another folder", folder_);
  }
  check_holds_no_trace(folder_);  // of a run that has just let it go
  recorder_ = std::make_unique<TraceRecorder>(fs::absolute(folder_));
}

TraceSession::~TraceSession() {
  if (lock_ >= 0) close(lock_);
  if (recorder_ == nullptr || started_) return;
  std::error_code ignored;
  fs::remove(recorder_->file(), ignored);
  if (made_folder_) fs::remove(folder_, ignored);  // if nothing came into it
}

void TraceSession::divide_stages_by(std::shared_ptr<const CostModel> costs, MemoryPlan memory) {
  parts_ = [costs = std::move(costs), memory = std::move(memory)](const TaskTag& tag,
                                                                  Device device) {
    return stage_parts(*costs, tag, device, &memory);
  };
}

int TraceSession::around(const std::function<int()>& run, bool quiet) {
  if (recorder_ == nullptr) return run();
  const OutliveReader outlive_reader;
  int status = 0;
  try {
    const WithoutFxtsWords without_words;
    status = run();
  } catch (...) {
    try {
      write_files(true);
    } catch (const Error&) {  // what went wrong first is what is said
    }
    throw;
  }
  write_files(quiet);
  return status;
}

Trace TraceSession::write_all_files() const {
  const fs::path folder = folder_;
  Trace trace = [&] {
    const RemovedAtEnd record(recorder_->file());
    return read_fxt(recorder_->file().string(), parts_, recorder_->request_ids());
  }();
  trace.cpu_plan = cpu_plan_;
  write_file((folder / "trace.jsonl").string(), trace_as_lines(trace));
  write_file((folder / "paje.trace").string(), trace_as_paje(trace));
  write_file((folder / "dag.dot").string(), trace_as_dot(trace));
  write_file((folder / "perfetto.json").string(), trace_as_perfetto(trace));
  return trace;
}

/// None of them was there before.
void TraceSession::remove_files() const {
  std::error_code ignored;
  for (const char* name : file_names) fs::remove(fs::path(folder_) / name, ignored);
  if (made_folder_) fs::remove(folder_, ignored);  // if nothing else came into it
}

void TraceSession::write_files(bool quiet) {
  if (recorder_ == nullptr || !started_) return;
  const Trace trace = [&] {
    try {
      return write_all_files();
    } catch (...) {
      remove_files();
      throw;
    }
  }();
  if (trace.num_lost > 0) {
    fmt::print(stderr,
               "sluice: the trace lacks {} of {} tasks; set STARPU_TRACE_BUFFER_SIZE (MiB)\n",
               trace.num_lost, static_cast<std::int64_t>(trace.tasks.size()) + trace.num_lost);
  }
  if (trace.num_flushes > 0) {
    fmt::print(stderr,
               "sluice: the trace's buffer was written out {} times during the run, which took "
               "time; set STARPU_TRACE_BUFFER_SIZE (MiB, now 64 unless set)\n",
               trace.num_flushes);
  }
  if (!quiet) {
    fmt::print(stderr, "trace of {} tasks in {}; read it with: sluice trace {}\n",
               trace.tasks.size(), one_line(folder_), one_line(folder_));
  }
}

}  // namespace sluice
