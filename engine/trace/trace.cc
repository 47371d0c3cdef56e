#include "engine/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int format_version = 3;

/// More than any trace has, and little enough for sums: 78 hours in ns, 256 TiB.
constexpr std::int64_t most_of_anything = std::int64_t{1} << 48;
constexpr std::int32_t most_layers = 1 << 20;

/// Names come from StarPU and from users' request ids: bytes that are no UTF-8 are replaced.
std::string line_of(const Json& json) { return json_text(json) + "\n"; }

Json header_of(const Trace& trace) {
  Json header = {{"sluice_trace", format_version}, {"duration_ns", trace.duration_ns},
                 {"flushes", trace.num_flushes},   {"lost", trace.num_lost},
                 {"tasks", trace.tasks.size()},    {"transfers", trace.transfers.size()},
                 {"memory", trace.memory.size()},  {"events", trace.events.size()},
                 {"nodes", Json::array()},         {"workers", Json::array()}};
  if (!trace.cpu_plan.empty()) header["cpu_plan"] = Json::parse(trace.cpu_plan);
  for (const TraceNode& node : trace.nodes)
    header["nodes"].push_back(
        {{"id", node.id}, {"tier", to_string(node.tier)}, {"name", node.name}});
  for (const TraceWorker& worker : trace.workers) {
    header["workers"].push_back({{"id", worker.id},
                                 {"device", to_string(worker.device)},
                                 {"node", worker.node},
                                 {"name", worker.name},
                                 {"predicted_sublayers", worker.predicted_sublayers}});
  }
  return header;
}

Json as_json(const TraceTask& task) {
  Json json = {{"task", task.id},          {"name", task.name},      {"worker", task.worker},
               {"submit", task.submit_ns}, {"ready", task.ready_ns}, {"start", task.start_ns},
               {"end", task.end_ns},       {"after", task.after}};
  if (!task.tagged) return json;
  const TaskTag& tag = task.tag;
  json["iteration"] = tag.iteration;
  json["sub_batch"] = tag.sub_batch;
  json["layer"] = tag.layer;
  json["layers"] = tag.num_layers;
  json["first"] = static_cast<int>(tag.sublayer);
  json["last"] = static_cast<int>(tag.last_sublayer);
  json["phase"] = to_string(tag.phase);
  json["device"] = to_string(tag.device);
  json["tokens"] = tag.num_tokens;
  json["context"] = tag.context_tokens;
  json["sequences"] = tag.num_sequences;
  Json& sublayers = json["sublayers"] = Json::array();
  for (const TraceSublayer& at : task.sublayers)
    sublayers.push_back({static_cast<int>(at.sublayer), at.start_ns, at.end_ns, at.layer});
  return json;
}

/// Reads the lines and says which one is wrong.
class LineReader {
 public:
  LineReader(const std::string& text, const std::string& path) : lines_(text), path_(path) {}

  Trace read() {
    try {
      next();
      read_header();
      for (std::size_t i = 0; i < num_tasks_; ++i) read_task();
      for (std::size_t i = 0; i < num_transfers_; ++i) read_transfer();
      for (std::size_t i = 0; i < num_memory_; ++i) read_memory();
      for (std::size_t i = 0; i < num_events_; ++i) read_event();
    } catch (const Json::exception&) {
      wrong("no line of a trace");
    }
    std::string rest;
    if (std::getline(lines_, rest)) {
      ++number_;
      wrong("more lines than the first one says");
    }
    return std::move(trace_);
  }

 private:
  [[noreturn]] void wrong(const char* what) const {
    throw Error("{}, line {}: {}; record the trace again", path_, number_, what);
  }
  void check(bool holds, const char* what) const {
    if (!holds) wrong(what);
  }

  void next() {
    std::string line;
    ++number_;
    if (!std::getline(lines_, line)) wrong("the file ends early");
    json_ = Json::parse(line);
  }

  /// A number is refused where it does not fit, which nlohmann's get<int>() does not notice.
  template <typename T>
  T as(const Json& value) const {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      constexpr std::int64_t lowest = std::is_signed_v<T> ? std::numeric_limits<T>::min() : 0;
      constexpr std::int64_t highest =
          sizeof(T) < sizeof(std::int64_t)
              ? static_cast<std::int64_t>(std::numeric_limits<T>::max())
              : std::numeric_limits<std::int64_t>::max();
      const auto number =
          value.is_number_integer() ? whole_number(value, lowest, highest) : std::nullopt;
      if (!value.is_number()) wrong("no line of a trace");
      if (!number) wrong("a number that cannot be");
      return static_cast<T>(*number);
    } else {
      return value.get<T>();
    }
  }
  template <typename T>
  T get(const char* key) const {
    return as<T>(json_.at(key));
  }
  std::int64_t time(const char* key) const {
    const auto at = get<std::int64_t>(key);
    check(0 <= at && at <= trace_.duration_ns, "a time outside of the trace");
    return at;
  }

  std::int64_t bytes() const {
    const auto bytes = get<std::int64_t>("bytes");
    check(-most_of_anything <= bytes && bytes <= most_of_anything, "bytes that cannot be");
    return bytes;
  }

  void read_header() {
    check(json_.is_object() && json_.contains("sluice_trace"), "not a trace of Sluice's");
    check(json_["sluice_trace"] == format_version, "another version of Sluice wrote it");
    trace_.duration_ns = get<std::int64_t>("duration_ns");
    check(trace_.duration_ns <= most_of_anything, "a time that cannot be");
    trace_.num_flushes = get<std::int64_t>("flushes");
    trace_.num_lost = get<std::int64_t>("lost");
    num_tasks_ = get<std::size_t>("tasks");
    num_transfers_ = get<std::size_t>("transfers");
    num_memory_ = get<std::size_t>("memory");
    num_events_ = get<std::size_t>("events");
    if (json_.contains("cpu_plan")) {
      check(json_["cpu_plan"].is_object(), "no CPU plan");
      trace_.cpu_plan = json_text(json_["cpu_plan"]);
    }
    for (const Json& node : json_.at("nodes")) {
      const auto tier = parse_tier(node.at("tier").get<std::string>());
      check(tier.has_value(), "an unknown tier");
      trace_.nodes.push_back({.id = as<int>(node.at("id")),
                              .tier = *tier,
                              .name = node.at("name").get<std::string>()});
    }
    for (const Json& worker : json_.at("workers")) {
      trace_.workers.push_back(
          {.id = as<int>(worker.at("id")),
           .device = device_of(worker.at("device").get<std::string>()),
           .node = as<int>(worker.at("node")),
           .name = worker.at("name").get<std::string>(),
           .predicted_sublayers = worker.at("predicted_sublayers").get<bool>()});
      check_node(trace_.workers.back().node);
    }
  }

  Device device_of(const std::string& text) const {
    check(text == "cpu" || text == "gpu", "an unknown device");
    return text == "cpu" ? Device::cpu : Device::gpu;
  }
  Sublayer sublayer_of(int number) const {
    check(0 <= number && number <= static_cast<int>(last_sublayer_value), "an unknown sublayer");
    return static_cast<Sublayer>(number);
  }
  void check_node(int id) const {
    check(std::any_of(trace_.nodes.begin(), trace_.nodes.end(),
                      [&](const TraceNode& node) { return node.id == id; }),
          "an unknown memory node");
  }

  void read_task() {
    next();
    TraceTask task;
    task.id = get<std::int64_t>("task");
    task.name = get<std::string>("name");
    task.worker = get<int>("worker");
    check(std::any_of(trace_.workers.begin(), trace_.workers.end(),
                      [&](const TraceWorker& worker) { return worker.id == task.worker; }),
          "an unknown worker");
    task.submit_ns = time("submit");
    task.ready_ns = time("ready");
    task.start_ns = time("start");
    task.end_ns = time("end");
    check(task.submit_ns <= task.ready_ns && task.ready_ns <= task.start_ns &&
              task.start_ns <= task.end_ns,
          "times that go backwards");
    check(json_.at("after").is_array(), "no list of tasks");
    for (const Json& before : json_["after"]) task.after.push_back(as<std::int64_t>(before));
    if (json_.contains("iteration")) read_tag(task);
    trace_.tasks.push_back(std::move(task));
  }

  void read_tag(TraceTask& task) const {
    task.tagged = true;
    task.tag.iteration = get<std::int64_t>("iteration");
    task.tag.sub_batch = get<std::int16_t>("sub_batch");
    task.tag.layer = get<std::int32_t>("layer");
    task.tag.num_layers = get<std::int16_t>("layers");
    check(-1 <= task.tag.layer && task.tag.layer <= most_layers, "a layer that cannot be");
    task.tag.sublayer = sublayer_of(get<int>("first"));
    task.tag.last_sublayer = sublayer_of(get<int>("last"));
    task.tag.phase = get<std::string>("phase") == "prefill" ? Phase::prefill : Phase::decode;
    task.tag.device = device_of(get<std::string>("device"));
    task.tag.num_tokens = get<std::int64_t>("tokens");
    task.tag.context_tokens = get<std::int64_t>("context");
    task.tag.num_sequences = get<std::int64_t>("sequences");
    std::int64_t end = task.start_ns;
    for (const Json& at : json_.at("sublayers")) {
      task.sublayers.push_back({.sublayer = sublayer_of(as<int>(at.at(0))),
                                .start_ns = as<std::int64_t>(at.at(1)),
                                .end_ns = as<std::int64_t>(at.at(2)),
                                .layer = as<std::int32_t>(at.at(3))});
      const TraceSublayer& last = task.sublayers.back();
      check(last.start_ns == end && last.end_ns >= end, "sublayers that do not fill their task");
      end = last.end_ns;
    }
    check(end == task.end_ns, "sublayers that do not fill their task");
  }

  void read_transfer() {
    next();
    TraceTransfer transfer;
    transfer.from = get<int>("from");
    transfer.to = get<int>("to");
    check_node(transfer.from);
    check_node(transfer.to);
    transfer.bytes = bytes();
    transfer.prefetch = get<bool>("prefetch");
    transfer.task = get<std::int64_t>("task");
    transfer.start_ns = time("start");
    transfer.end_ns = time("end");
    check(transfer.start_ns <= transfer.end_ns, "times that go backwards");
    trace_.transfers.push_back(transfer);
  }

  void read_memory() {
    next();
    trace_.memory.push_back({.node = get<int>("node"), .at_ns = time("at"), .bytes = bytes()});
    check_node(trace_.memory.back().node);
  }

  void read_event() {
    next();
    const auto kind = get<std::string>("event");
    check(kind == "iteration" || kind == "request", "an unknown kind of event");
    trace_.events.push_back(
        {.kind = kind == "iteration" ? TraceEvent::Kind::iteration : TraceEvent::Kind::request,
         .at_ns = time("at"),
         .text = get<std::string>("text")});
  }

  std::istringstream lines_;
  const std::string& path_;
  std::int64_t number_ = 0;
  Json json_;
  Trace trace_;
  std::size_t num_tasks_ = 0;
  std::size_t num_transfers_ = 0;
  std::size_t num_memory_ = 0;
  std::size_t num_events_ = 0;
};

}  // namespace

std::string trace_as_lines(const Trace& trace) {
  std::string text = line_of(header_of(trace));
  for (const TraceTask& task : trace.tasks) text += line_of(as_json(task));
  for (const TraceTransfer& transfer : trace.transfers) {
    text += line_of({{"from", transfer.from},
                     {"to", transfer.to},
                     {"bytes", transfer.bytes},
                     {"prefetch", transfer.prefetch},
                     {"task", transfer.task},
                     {"start", transfer.start_ns},
                     {"end", transfer.end_ns}});
  }
  for (const TraceMemory& memory : trace.memory)
    text += line_of({{"node", memory.node}, {"at", memory.at_ns}, {"bytes", memory.bytes}});
  for (const TraceEvent& event : trace.events) {
    text += line_of({{"event", event.kind == TraceEvent::Kind::iteration ? "iteration" : "request"},
                     {"at", event.at_ns},
                     {"text", event.text}});
  }
  return text;
}

Trace trace_from_lines(const std::string& text, const std::string& path) {
  return LineReader(text, path).read();
}

TaskIndex::TaskIndex(const Trace& trace) {
  by_id_.reserve(trace.tasks.size());
  for (const TraceTask& task : trace.tasks) by_id_.push_back(&task);
  std::sort(by_id_.begin(), by_id_.end(),
            [](const TraceTask* a, const TraceTask* b) { return a->id < b->id; });
}

const TraceTask* TaskIndex::find(std::int64_t id) const {
  const auto found = std::lower_bound(
      by_id_.begin(), by_id_.end(), id,
      [](const TraceTask* task, std::int64_t wanted) { return task->id < wanted; });
  return found != by_id_.end() && (*found)->id == id ? *found : nullptr;
}

std::string node_label(const Trace& trace, int id) {
  for (const TraceNode& node : trace.nodes) {
    if (node.id == id) return fmt::format("{} ({})", to_string(node.tier), printable(node.name));
  }
  return "?";
}

std::string task_label(const TraceTask& task) {
  if (!task.tagged) return task.name;
  const TaskTag& tag = task.tag;
  if (tag.sublayer == tag.last_sublayer) return std::string(to_string(tag.sublayer));
  return fmt::format("stage {}-{}", static_cast<int>(tag.sublayer),
                     static_cast<int>(tag.last_sublayer));
}

std::string task_place(const TraceTask& task) {
  if (!task.tagged) return "outside of iterations";
  const std::string iteration =
      fmt::format("iteration {}.{}", task.tag.iteration, task.tag.sub_batch);
  return task.tag.layer < 0 ? iteration : layers_of(task.tag) + ", " + iteration;
}

}  // namespace sluice
