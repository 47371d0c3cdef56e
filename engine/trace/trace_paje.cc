#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "engine/trace/trace_formats.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

/// Event definitions, types and colours; what the numbers of the lines below mean.
constexpr std::string_view head = R"(%EventDef PajeDefineContainerType 0
% Alias string
% Type string
% Name string
%EndEventDef
%EventDef PajeDefineStateType 1
% Alias string
% Type string
% Name string
%EndEventDef
%EventDef PajeDefineVariableType 2
% Alias string
% Type string
% Name string
% Color color
%EndEventDef
%EventDef PajeDefineLinkType 3
% Alias string
% Type string
% StartContainerType string
% EndContainerType string
% Name string
%EndEventDef
%EventDef PajeDefineEventType 4
% Alias string
% Type string
% Name string
%EndEventDef
%EventDef PajeDefineEntityValue 5
% Alias string
% Type string
% Name string
% Color color
%EndEventDef
%EventDef PajeCreateContainer 6
% Time date
% Alias string
% Type string
% Container string
% Name string
%EndEventDef
%EventDef PajeDestroyContainer 7
% Time date
% Name string
% Type string
%EndEventDef
%EventDef PajePushState 8
% Time date
% Container string
% Type string
% Value string
% Layer int
% Layers int
% SubBatch int
% Iteration int
% Phase string
% Tokens int
% Task int
%EndEventDef
%EventDef PajePopState 9
% Time date
% Container string
% Type string
%EndEventDef
%EventDef PajeSetVariable 10
% Time date
% Container string
% Type string
% Value double
%EndEventDef
%EventDef PajeStartLink 11
% Time date
% Container string
% Type string
% StartContainer string
% Value string
% Key string
% Bytes double
%EndEventDef
%EventDef PajeEndLink 12
% Time date
% Container string
% Type string
% EndContainer string
% Value string
% Key string
% Bytes double
%EndEventDef
%EventDef PajeNewEvent 13
% Time date
% Container string
% Type string
% Value string
%EndEventDef
0 Machine 0 "Machine"
0 Worker Machine "Worker"
0 Tasks Worker "Tasks"
0 Node Machine "Memory node"
1 Sublayer Worker "Sublayer"
1 Task Tasks "Task"
2 Used Node "Memory in use" "0.3 0.3 0.8"
3 Transfer Machine Node Node "Transfer"
4 Iteration Machine "Iteration"
4 Request Machine "Request"
)";

/// Paje has no escapes: what cannot be in a text is written out.
std::string quoted(const std::string& given) {
  std::string text = printable(given);
  std::replace(text.begin(), text.end(), '"', '\'');
  return '"' + text + '"';
}

/// Nanoseconds as the file's ms, exactly.
std::string ms(std::int64_t ns) { return fmt::format("{}.{:06}", ns / 1000000, ns % 1000000); }

/// Lines in the order of time; those of one moment as they were added.
class Lines {
 public:
  void add(std::int64_t at_ns, std::string line) { lines_.push_back({at_ns, std::move(line)}); }
  std::string text() {
    std::stable_sort(lines_.begin(), lines_.end(),
                     [](const Line& a, const Line& b) { return a.at_ns < b.at_ns; });
    std::string text;
    for (const Line& line : lines_) text += line.text;
    return text;
  }

 private:
  struct Line {
    std::int64_t at_ns;
    std::string text;
  };
  std::vector<Line> lines_;
};

std::string containers(const Trace& trace) {
  std::string text = "6 0.000000 machine Machine 0 \"machine\"\n";
  for (const TraceNode& node : trace.nodes)
    text += fmt::format("6 0.000000 n{} Node machine {}\n", node.id,
                        quoted(node_label(trace, node.id)));
  for (const TraceWorker& worker : trace.workers) {
    text += fmt::format("6 0.000000 w{} Worker machine {}\n", worker.id, quoted(worker.name));
    text +=
        fmt::format("6 0.000000 t{0} Tasks w{0} {1}\n", worker.id, quoted(worker.name + " tasks"));
  }
  return text;
}

/// A moment after everything: of several events at a container's very end pajeng shows one.
std::string end_of_containers(const Trace& trace) {
  std::string text;
  const std::string end = ms(trace.duration_ns + 1);
  for (const TraceWorker& worker : trace.workers)
    text += fmt::format("7 {0} t{1} Tasks\n7 {0} w{1} Worker\n", end, worker.id);
  for (const TraceNode& node : trace.nodes) text += fmt::format("7 {} n{} Node\n", end, node.id);
  return text + fmt::format("7 {} machine Machine\n", end);
}

/// The values of a task's state, or of what it did in `layer`.
std::string fields_of(const TraceTask& task, std::int32_t layer, int num_layers) {
  const TaskTag& tag = task.tag;
  if (!task.tagged) return fmt::format("-1 0 -1 -1 none 0 {}", task.id);
  return fmt::format("{} {} {} {} {} {} {}", layer, num_layers, tag.sub_batch, tag.iteration,
                     to_string(tag.phase), tag.num_tokens, task.id);
}

void add_task(const TraceTask& task, Lines& lines) {
  lines.add(task.start_ns, fmt::format("8 {} t{} Task {} {}\n", ms(task.start_ns), task.worker,
                                       quoted(task_label(task)),
                                       fields_of(task, task.tag.layer, task.tag.num_layers)));
  // Without stamps all layers are one.
  const int layers_each = task.sublayers.size() == 1 ? task.tag.num_layers : 1;
  for (const TraceSublayer& at : task.sublayers) {
    lines.add(at.start_ns,
              fmt::format("8 {} w{} Sublayer s{} {}\n", ms(at.start_ns), task.worker,
                          static_cast<int>(at.sublayer), fields_of(task, at.layer, layers_each)));
    lines.add(at.end_ns, fmt::format("9 {} w{} Sublayer\n", ms(at.end_ns), task.worker));
  }
  lines.add(task.end_ns, fmt::format("9 {} t{} Task\n", ms(task.end_ns), task.worker));
}

void add_transfer(const TraceTransfer& transfer, std::size_t key, Lines& lines) {
  const char* value = transfer.prefetch ? "prefetch" : "fetch";
  lines.add(transfer.start_ns,
            fmt::format("11 {} machine Transfer n{} {} k{} {}\n", ms(transfer.start_ns),
                        transfer.from, value, key, transfer.bytes));
  lines.add(transfer.end_ns,
            fmt::format("12 {} machine Transfer n{} {} k{} {}\n", ms(transfer.end_ns), transfer.to,
                        value, key, transfer.bytes));
}

}  // namespace

std::string trace_as_paje(const Trace& trace) {
  std::string text(head);
  for (int i = 0; i <= static_cast<int>(last_sublayer_value); ++i) {
    const auto sublayer = static_cast<Sublayer>(i);
    const auto& [red, green, blue] = properties_of(sublayer).colour;
    text += fmt::format("5 s{} Sublayer \"{}\" \"{:.2f} {:.2f} {:.2f}\"\n", i, to_string(sublayer),
                        red, green, blue);
  }
  Lines lines;
  for (const TraceTask& task : trace.tasks) add_task(task, lines);
  for (std::size_t i = 0; i < trace.transfers.size(); ++i)
    add_transfer(trace.transfers[i], i, lines);
  for (const TraceMemory& memory : trace.memory) {
    lines.add(memory.at_ns,
              fmt::format("10 {} n{} Used {}\n", ms(memory.at_ns), memory.node, memory.bytes));
  }
  for (const TraceEvent& event : trace.events) {
    lines.add(event.at_ns,
              fmt::format("13 {} machine {} {}\n", ms(event.at_ns),
                          event.kind == TraceEvent::Kind::iteration ? "Iteration" : "Request",
                          quoted(event.text)));
  }
  return text + containers(trace) + lines.text() + end_of_containers(trace);
}

}  // namespace sluice
