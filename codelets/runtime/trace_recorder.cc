#include "codelets/runtime/trace_recorder.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>

#include "codelets/runtime/submissions.h"

namespace sluice {
namespace {

std::atomic<bool> recording{false};
std::atomic<std::int64_t> num_tasks{0};

struct RequestIds {
  std::mutex mutex;
  std::map<std::int64_t, std::string> by_index;
};
RequestIds& request_ids_marked() {
  static RequestIds instance;
  return instance;
}

/// As long as a mark may be: FxT takes 2032 bytes.
constexpr std::size_t max_mark_bytes = 512;

/// Records "sluice KIND ...".
template <typename... Args>
void mark(fmt::format_string<Args...> format, Args&&... args) {
  std::array<char, max_mark_bytes> text{};
  fmt::format_to_n(text.data(), text.size() - 1, format, std::forward<Args>(args)...);
  starpu_fxt_trace_user_event_string(text.data());
}

/// As a word of Tier.
const char* tier_of(unsigned node) {
  switch (starpu_node_get_kind(node)) {
    case STARPU_CPU_RAM:  // others than the first have no processors
      return node == STARPU_MAIN_RAM ? "ddr" : "cxl";
    case STARPU_DISK_RAM:
      return "disk";
    default:
      return "hbm";
  }
}

void mark_machine() {
  std::array<char, 64> name{};
  for (unsigned node = 0; node < starpu_memory_nodes_get_count(); ++node) {
    starpu_memory_node_get_name(node, name.data(), name.size());
    const bool stand_in = starpu_node_get_kind(node) == STARPU_TCPIP_MS_RAM;
    mark("sluice node {} {} {} {}", node, tier_of(node), starpu_memory_get_used(node),
         stand_in ? "stand-in" : name.data());
  }
  for (unsigned worker = 0; worker < starpu_worker_get_count(); ++worker) {
    const auto id = static_cast<int>(worker);
    starpu_worker_get_name(id, name.data(), name.size());
    const std::string_view whole = name.data();  // "CUDA 0.0 (what the card is called)"
    const char* device = starpu_worker_get_type(id) == STARPU_CPU_WORKER ? "cpu" : "gpu";
    const bool stand_in = starpu_worker_get_type(id) == STARPU_TCPIP_MS_WORKER;
    mark("sluice worker {} {} {} {}", id, device, starpu_worker_get_memory_node(worker),
         stand_in ? "stand-in" : whole.substr(0, whole.find(" (")));
  }
}

}  // namespace

TraceRecorder::TraceRecorder(const std::filesystem::path& folder) : file_(folder / "fxt_0") {
  variables_.set("STARPU_FXT_TRACE", "1");
  variables_.set("STARPU_FXT_PREFIX", folder);
  variables_.set("STARPU_FXT_SUFFIX", "fxt");
  // What read_fxt() reads, and not more: each event costs time.
  variables_.set("STARPU_FXT_EVENTS", "TASK|TASK_VERBOSE|SCHED|DSM|DSM_VERBOSE|EVENT");
  starpu_fxt_autostart_profiling(0);
}

TraceRecorder::~TraceRecorder() { recording = false; }

void TraceRecorder::start() {
  starpu_fxt_start_profiling();
  num_tasks = 0;
  {
    const std::scoped_lock lock(request_ids_marked().mutex);
    request_ids_marked().by_index.clear();
  }
  recording = true;
  mark_machine();
}

void TraceRecorder::stop() {
  if (!recording) return;
  starpu_task_wait_for_all();
  recording = false;
  mark("sluice end {}", num_tasks.load());
  starpu_fxt_stop_profiling();
}

std::map<std::int64_t, std::string> TraceRecorder::request_ids() const {
  const std::scoped_lock lock(request_ids_marked().mutex);
  return request_ids_marked().by_index;
}

void mark_task(starpu_task* task, const TaskTag& tag) {
  note_submission();
  if (!recording.load(std::memory_order_relaxed)) return;
  num_tasks.fetch_add(1, std::memory_order_relaxed);
  mark("sluice task {} {} {} {} {} {} {} {} {} {} {} {}", starpu_task_get_job_id(task),
       tag.iteration, tag.sub_batch, tag.layer, static_cast<int>(tag.sublayer),
       static_cast<int>(tag.last_sublayer), static_cast<int>(tag.phase),
       static_cast<int>(tag.device), tag.num_tokens, tag.context_tokens, tag.num_sequences,
       tag.num_layers);
}

void mark_sublayer(Sublayer ended) {
  if (!recording.load(std::memory_order_relaxed)) return;
  mark("sluice sublayer {} {}", starpu_worker_get_id(), static_cast<int>(ended));
}

void mark_iteration(std::int64_t iteration) {
  if (!recording.load(std::memory_order_relaxed)) return;
  mark("sluice iteration {}", iteration);
}

void mark_request(std::string_view what, std::int64_t index, std::string_view id) {
  if (!recording.load(std::memory_order_relaxed)) return;
  {
    const std::scoped_lock lock(request_ids_marked().mutex);
    request_ids_marked().by_index.try_emplace(index, id);
  }
  mark("sluice request {} {}", what, index);
}

}  // namespace sluice
