#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "engine/trace/trace_formats.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// Rows of the picture: workers, links between memories, the machine's memory and events.
constexpr int workers_process = 1;
constexpr int links_process = 2;
constexpr int machine_process = 3;

double us(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

Json name_of(const char* kind, int process, int thread, const std::string& name) {
  return {
      {"ph", "M"}, {"name", kind}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

/// All of a task, or one of its sublayers.
struct Span {
  std::string name;
  const char* category;
  std::int64_t start_ns, end_ns;
  std::int32_t layer;
  int num_layers;
};

Json as_json(const TraceTask& task, const Span& span) {
  Json json = {{"ph", "X"},
               {"name", span.name},
               {"cat", span.category},
               {"pid", workers_process},
               {"tid", task.worker},
               {"ts", us(span.start_ns)},
               {"dur", us(span.end_ns - span.start_ns)}};
  const TaskTag& tag = task.tag;
  Json& args = json["args"] = {{"task", task.id}};
  if (task.tagged) {
    args["layer"] = span.layer;
    args["layers"] = span.num_layers;
    args["sub_batch"] = tag.sub_batch;
    args["iteration"] = tag.iteration;
    args["phase"] = to_string(tag.phase);
    args["tokens"] = tag.num_tokens;
    args["context"] = tag.context_tokens;
  }
  return json;
}

/// The document, an event a line.
class Writer {
 public:
  void add(const Json& event) {
    text_ += text_.empty() ? "" : ",\n";
    text_ += json_text(event);
  }
  std::string document() const {
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + text_ + "\n]}\n";
  }

 private:
  std::string text_;
};

void add_names(const Trace& trace, Writer& writer) {
  writer.add(name_of("process_name", workers_process, 0, "workers"));
  if (!trace.cpu_plan.empty()) {
    writer.add({{"ph", "M"},
                {"name", "process_labels"},
                {"pid", workers_process},
                {"tid", 0},
                {"args", {{"labels", "CPU plan " + trace.cpu_plan}}}});
  }
  if (!trace.transfers.empty()) writer.add(name_of("process_name", links_process, 0, "transfers"));
  writer.add(name_of("process_name", machine_process, 0, "machine"));
  for (const TraceWorker& worker : trace.workers)
    writer.add(name_of("thread_name", workers_process, worker.id, worker.name));
}

/// Transfers of one link may overlap, which spans of one row may not: they are asynchronous events.
void add_transfer(const Trace& trace, std::size_t index, Writer& writer) {
  const TraceTransfer& transfer = trace.transfers[index];
  Json json = {{"ph", "b"},
               {"name", fmt::format("{} to {}", node_label(trace, transfer.from),
                                    node_label(trace, transfer.to))},
               {"cat", transfer.prefetch ? "prefetch" : "fetch"},
               {"id", index},
               {"pid", links_process},
               {"tid", 0},
               {"ts", us(transfer.start_ns)},
               {"args", {{"bytes", transfer.bytes}, {"task", transfer.task}}}};
  writer.add(json);
  json["ph"] = "e";
  json["ts"] = us(transfer.end_ns);
  json.erase("args");
  writer.add(json);
}

}  // namespace

std::string trace_as_perfetto(const Trace& trace) {
  Writer writer;
  add_names(trace, writer);
  for (const TraceTask& task : trace.tasks) {
    writer.add(as_json(task, {.name = task_label(task),
                              .category = "task",
                              .start_ns = task.start_ns,
                              .end_ns = task.end_ns,
                              .layer = task.tag.layer,
                              .num_layers = task.tag.num_layers}));
    for (const TraceSublayer& at : task.sublayers) {
      writer.add(
          as_json(task, {.name = std::string(to_string(at.sublayer)),
                         .category = "sublayer",
                         .start_ns = at.start_ns,
                         .end_ns = at.end_ns,
                         .layer = at.layer,
                         .num_layers = task.sublayers.size() == 1 ? task.tag.num_layers : 1}));
    }
  }
  for (std::size_t i = 0; i < trace.transfers.size(); ++i) add_transfer(trace, i, writer);
  for (const TraceMemory& memory : trace.memory) {
    writer.add({{"ph", "C"},
                {"name", "memory: " + node_label(trace, memory.node)},
                {"pid", machine_process},
                {"ts", us(memory.at_ns)},
                {"args", {{"bytes", memory.bytes}}}});
  }
  for (const TraceEvent& event : trace.events) {
    writer.add({{"ph", "i"},
                {"s", "g"},
                {"name", event.text},
                {"cat", event.kind == TraceEvent::Kind::iteration ? "iteration" : "request"},
                {"pid", machine_process},
                {"tid", 0},
                {"ts", us(event.at_ns)}});
  }
  return writer.document();
}

}  // namespace sluice
