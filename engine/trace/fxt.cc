#include "engine/trace/fxt.h"

#include <fxt/fxt.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

/// StarPU's events, as `src/common/fxt.h` of 1.4 numbers them, and their parameters.
enum EventCode : std::uint64_t {
  start_codelet = 0x5102,    // job, context, worker, node
  end_codelet = 0x5103,      // job, size, hash, worker, thread
  job_push = 0x5104,         // job, priority, thread
  task_deps = 0x5113,        // job before, job after
  task_submit = 0x511a,      // job, ...
  codelet_handle = 0x511b,   // job, handle, size, mode
  used_memory = 0x512a,      // node, bytes, thread
  task_name = 0x512b,        // job, thread, text
  start_copy = 0x5133,       // from, to, bytes, copy, prefetch, handle
  end_copy = 0x5134,         // from, to, bytes, copy, prefetch
  text_event = 0x513c,       // text
  register_handle = 0x517c,  // handle, bytes, largest bytes, home node
};

struct Event {
  std::int64_t at_ns = 0;
  std::uint64_t code = 0;
  std::vector<std::uint64_t> values;

  std::int64_t value(std::size_t i) const {
    return i < values.size() ? static_cast<std::int64_t>(values[i]) : -1;
  }
  /// The parameters from the `first` on are characters, padded with zeros.
  std::string text(std::size_t first) const {
    if (first >= values.size()) return {};
    const char* begin = reinterpret_cast<const char*>(values.data() + first);
    return {begin, strnlen(begin, (values.size() - first) * sizeof(values[0]))};
  }
};

/// Those that Builder uses, in the order of time. Threads take their time stamps before their
/// places in the buffer.
std::vector<Event> read_events(const std::string& path) {
  const std::unique_ptr<std::remove_pointer_t<fxt_t>, void (*)(fxt_t)> file(
      fxt_open(path.c_str()), [](fxt_t opened) { fxt_close(opened); });
  if (file == nullptr)
    throw Error("cannot read {}, which StarPU should have written; is the disk full?", path);
  const std::unique_ptr<std::remove_pointer_t<fxt_blockev_t>, void (*)(fxt_blockev_t)> stream(
      fxt_blockev_enter(file.get()), fxt_blockev_leave);
  static const std::set<std::uint64_t> used = {
      start_codelet, end_codelet, job_push,   task_deps, task_submit, codelet_handle,
      used_memory,   task_name,   start_copy, end_copy,  text_event,  register_handle};
  std::vector<Event> events;
  fxt_ev event{};
  while (fxt_next_ev(stream.get(), FXT_EV_TYPE_64, &event) == FXT_EV_OK) {
    if (used.count(event.ev64.code) == 0) continue;
    events.push_back({.at_ns = static_cast<std::int64_t>(event.ev64.time),
                      .code = event.ev64.code,
                      .values = {event.ev64.param, event.ev64.param + event.ev64.nb_params}});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.at_ns < b.at_ns; });
  return events;
}

/// Puts a trace together, event by event.
class Builder {
 public:
  Builder(const std::vector<Event>& events, const StageParts& parts,
          const std::map<std::int64_t, std::string>& request_ids)
      : parts_(parts), request_ids_(request_ids) {
    for (const Event& event : events) add(event);
  }

  bool started() const { return !trace_.workers.empty(); }
  bool ended() const { return end_ns_.has_value(); }

  Trace finish() {
    trace_.duration_ns = *end_ns_ - begin_ns_;
    for (auto& [id, job] : jobs_) {
      if (!job.complete()) {
        if (job.task.tagged) ++trace_.num_lost;
        continue;
      }
      finish_task(job.task);
      trace_.tasks.push_back(std::move(job.task));
    }
    // A task of which not even the mark is there.
    trace_.num_lost += std::max<std::int64_t>(0, num_submitted_ - num_marked_);
    const auto by_begin = [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; };
    std::stable_sort(trace_.tasks.begin(), trace_.tasks.end(), by_begin);
    std::stable_sort(trace_.transfers.begin(), trace_.transfers.end(), by_begin);
    return std::move(trace_);
  }

 private:
  struct Job {
    TraceTask task;
    std::vector<std::int64_t> before;
    bool submitted = false;
    bool ready = false;
    bool started = false;
    bool ended = false;
    bool expanded = false;
    std::set<std::int64_t> stands_for;  ///< see collect(), once `expanded`
    bool complete() const { return started && ended; }
  };

  std::int64_t time_of(const Event& event) const { return event.at_ns - begin_ns_; }

  void add(const Event& event) {
    if (event.code == text_event) return add_text(event);
    if (event.code == register_handle) return add_registration(event);
    if (!started() || ended()) return;
    switch (event.code) {
      case task_deps:
        jobs_[event.value(1)].before.push_back(event.value(0));
        break;
      case task_submit:
        jobs_[event.value(0)].task.submit_ns = time_of(event);
        jobs_[event.value(0)].submitted = true;
        break;
      case job_push:
        jobs_[event.value(0)].task.ready_ns = time_of(event);
        jobs_[event.value(0)].ready = true;
        break;
      case task_name:
        jobs_[event.value(0)].task.name = event.text(2);
        break;
      case start_codelet:
        begin_task(event);
        break;
      case codelet_handle:
        use_transfer(event.value(0), event.value(1));
        break;
      case end_codelet:
        end_task(event);
        break;
      case start_copy:
        copies_[event.value(3)] = {.event = event, .start_ns = time_of(event)};
        break;
      case end_copy:
        end_transfer(event);
        break;
      case used_memory:
        trace_.memory.push_back(
            {.node = static_cast<int>(event.value(0)),
             .at_ns = time_of(event),
             .bytes = event.value(1) + own_bytes_[static_cast<int>(event.value(0))]});
        break;
      default:
        break;
    }
  }

  /// Memory that we gave to StarPU before the trace began: weights, KV.
  void add_registration(const Event& event) {
    const auto home = static_cast<int>(event.value(3));
    if (!started() && home >= 0) own_bytes_[home] += event.value(1);
  }

  void add_text(const Event& event) {
    const std::string text = event.text(0);
    if (text == "fxt flush" && started()) ++trace_.num_flushes;
    std::istringstream words(text);
    std::string word;
    words >> word;
    if (word != "sluice") return;
    words >> word;
    if (word == "node") return add_node(event, words);
    if (word == "worker") return add_worker(words);
    if (word == "task") return add_tag(words);
    if (word == "sublayer") return add_sublayer(event, words);
    if (word == "iteration") return add_iteration(event, words);
    if (word == "request") return add_request(event, words);
    if (word == "end") {
      words >> num_submitted_;
      end_ns_ = event.at_ns;
    }
  }

  void add_node(const Event& event, std::istream& words) {
    if (trace_.nodes.empty()) begin_ns_ = event.at_ns;
    TraceNode& node = trace_.nodes.emplace_back();
    std::string tier;
    std::int64_t allocated_bytes = 0;  // by StarPU, before the trace began
    words >> node.id >> tier >> allocated_bytes >> std::ws;
    std::getline(words, node.name);
    node.tier = parse_tier(tier).value_or(Tier::ddr);
    // What lives elsewhere than in main memory or on a disk StarPU has allocated itself.
    if (node.tier != Tier::ddr && node.tier != Tier::disk) own_bytes_.erase(node.id);
    trace_.memory.push_back(
        {.node = node.id, .at_ns = 0, .bytes = allocated_bytes + own_bytes_[node.id]});
  }

  void add_worker(std::istream& words) {
    TraceWorker& worker = trace_.workers.emplace_back();
    std::string device;
    words >> worker.id >> device >> worker.node >> std::ws;
    std::getline(words, worker.name);
    worker.device = device == "cpu" ? Device::cpu : Device::gpu;
  }

  void add_tag(std::istream& words) {
    std::int64_t id = 0;
    int first = 0;
    int last = 0;
    int phase = 0;
    int device = 0;
    TaskTag tag;
    words >> id >> tag.iteration >> tag.sub_batch >> tag.layer >> first >> last >> phase >>
        device >> tag.num_tokens >> tag.context_tokens >> tag.num_sequences >> tag.num_layers;
    tag.sublayer = static_cast<Sublayer>(first);
    tag.last_sublayer = static_cast<Sublayer>(last);
    tag.phase = static_cast<Phase>(phase);
    tag.device = static_cast<Device>(device);
    Job& job = jobs_[id];
    job.task.tag = tag;
    job.task.tagged = true;
    ++num_marked_;
  }

  void add_sublayer(const Event& event, std::istream& words) {
    int worker = 0;
    int sublayer = 0;
    words >> worker >> sublayer;
    const auto running = running_.find(worker);
    if (running == running_.end()) return;
    TraceTask& task = jobs_[running->second].task;
    const std::int64_t start =
        task.sublayers.empty() ? task.start_ns : task.sublayers.back().end_ns;
    std::int32_t layer = task.sublayers.empty() ? task.tag.layer : task.sublayers.back().layer;
    if (!task.sublayers.empty() && sublayer == static_cast<int>(Sublayer::qkv)) ++layer;
    task.sublayers.push_back({.sublayer = static_cast<Sublayer>(sublayer),
                              .start_ns = start,
                              .end_ns = time_of(event),
                              .layer = layer});
  }

  /// Cuts a task that no kernel has stamped.
  void divide(TraceTask& task) {
    TraceWorker* worker = worker_of(task.worker);
    if (!parts_ || worker == nullptr) return;
    const std::vector<SublayerSeconds> parts = parts_(task.tag, worker->device);
    double sum_s = 0;
    for (const SublayerSeconds& part : parts) sum_s += part.seconds;
    if (!(sum_s > 0)) return;
    worker->predicted_sublayers = true;
    const auto whole = static_cast<double>(task.duration_ns());
    double done_s = 0;
    std::int64_t start_ns = task.start_ns;
    for (const SublayerSeconds& part : parts) {
      done_s += part.seconds;
      const std::int64_t end_ns = task.start_ns + static_cast<std::int64_t>(whole * done_s / sum_s);
      task.sublayers.push_back(
          {.sublayer = part.sublayer, .start_ns = start_ns, .end_ns = end_ns, .layer = part.layer});
      start_ns = end_ns;
    }
  }

  void add_iteration(const Event& event, std::istream& words) {
    std::string number;
    words >> number;
    trace_.events.push_back({.kind = TraceEvent::Kind::iteration,
                             .at_ns = time_of(event),
                             .text = "iteration " + number});
  }

  void add_request(const Event& event, std::istream& words) {
    std::string what;
    std::int64_t index = 0;
    words >> what >> index;
    std::string text = fmt::format("{} {}", what, index);
    const auto id = request_ids_.find(index);
    const bool is_named = id != request_ids_.end() && !id->second.empty();
    if (is_named && id->second != std::to_string(index)) text += fmt::format(" ({})", id->second);
    trace_.events.push_back(
        {.kind = TraceEvent::Kind::request, .at_ns = time_of(event), .text = std::move(text)});
  }

  void begin_task(const Event& event) {
    Job& job = jobs_[event.value(0)];
    job.task.id = event.value(0);
    job.task.worker = static_cast<int>(event.value(2));
    job.task.start_ns = time_of(event);
    job.started = true;
    running_[job.task.worker] = job.task.id;
  }

  void end_task(const Event& event) {
    Job& job = jobs_[event.value(0)];
    job.task.end_ns = time_of(event);
    job.ended = true;
    running_.erase(static_cast<int>(event.value(3)));
  }

  /// A task that has begun uses a handle on its worker's node. What was on its way there (from a
  /// disk) came for it, too.
  void use_transfer(std::int64_t job, std::int64_t handle) {
    int node = node_of(jobs_[job].task.worker);
    for (auto found = arrived_.find({handle, node}); found != arrived_.end();
         found = arrived_.find({handle, node})) {
      TraceTransfer& transfer = trace_.transfers[found->second];
      transfer.task = job;
      node = transfer.from;
      arrived_.erase(found);
    }
  }

  /// Null when there is none.
  TraceWorker* worker_of(int id) {
    for (TraceWorker& worker : trace_.workers) {
      if (worker.id == id) return &worker;
    }
    return nullptr;
  }
  int node_of(int worker) {
    const TraceWorker* known = worker_of(worker);
    return known != nullptr ? known->node : 0;
  }

  void end_transfer(const Event& event) {
    const auto found = copies_.find(event.value(3));
    if (found == copies_.end()) return;
    const Event& begin = found->second.event;
    arrived_[{begin.value(5), static_cast<int>(begin.value(1))}] = trace_.transfers.size();
    trace_.transfers.push_back({.from = static_cast<int>(begin.value(0)),
                                .to = static_cast<int>(begin.value(1)),
                                .bytes = begin.value(2),
                                .prefetch = begin.value(4) != 0,
                                .start_ns = found->second.start_ns,
                                .end_ns = time_of(event)});
    copies_.erase(found);
  }

  void finish_task(TraceTask& task) {
    Job& job = jobs_[task.id];
    std::set<std::int64_t> after;
    for (const std::int64_t before : job.before) collect(before, after);
    after.erase(task.id);
    task.after.assign(after.begin(), after.end());
    if (!job.submitted) task.submit_ns = std::min(task.submit_ns, task.start_ns);
    task.submit_ns = std::clamp<std::int64_t>(task.submit_ns, 0, task.start_ns);
    if (!job.ready) task.ready_ns = task.submit_ns;
    task.ready_ns = std::clamp(task.ready_ns, task.submit_ns, task.start_ns);
    if (!task.tagged) {
      task.sublayers.clear();
      return;
    }
    if (task.sublayers.empty()) divide(task);
    if (task.sublayers.empty()) {
      task.sublayers.push_back({.sublayer = task.tag.sublayer,
                                .start_ns = task.start_ns,
                                .end_ns = task.end_ns,
                                .layer = task.tag.layer});
    } else {
      task.sublayers.back().end_ns = task.end_ns;
    }
  }

  /// Adds the tasks that `id` is or, where it is one of StarPU's own that run nowhere, stands for.
  void collect(std::int64_t id, std::set<std::int64_t>& tasks) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    Job& job = found->second;
    if (job.complete()) {
      tasks.insert(id);
      return;
    }
    if (!job.expanded) {
      job.expanded = true;
      for (const std::int64_t before : job.before) collect(before, job.stands_for);
    }
    tasks.insert(job.stands_for.begin(), job.stands_for.end());
  }

  struct Copy {
    Event event;
    std::int64_t start_ns = 0;
  };

  const StageParts& parts_;
  const std::map<std::int64_t, std::string>& request_ids_;
  Trace trace_;
  std::int64_t begin_ns_ = 0;
  std::optional<std::int64_t> end_ns_;
  std::int64_t num_submitted_ = 0;
  std::int64_t num_marked_ = 0;
  std::map<std::int64_t, Job> jobs_;
  std::unordered_map<int, std::int64_t> running_;  ///< job by worker
  std::unordered_map<std::int64_t, Copy> copies_;  ///< under way
  std::map<std::pair<std::int64_t, int>, std::size_t>
      arrived_;  ///< transfers that no task has used yet, by handle and node
  std::unordered_map<int, std::int64_t> own_bytes_;  ///< by node
};

}  // namespace

bool has_fxt() { return true; }

Trace read_fxt(const std::string& path, const StageParts& parts,
               const std::map<std::int64_t, std::string>& request_ids) {
  Builder builder(read_events(path), parts, request_ids);
  if (!builder.started())
    throw Error("{} has no marks of Sluice's; was it recorded by sluice --trace?", path);
  if (!builder.ended())
    throw Error("{} ends early: is the disk full? Free some space and record again", path);
  return builder.finish();
}

}  // namespace sluice
