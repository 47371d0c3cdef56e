#include <fmt/format.h>

#include <map>
#include <vector>

#include "base/text.h"
#include "engine/trace/trace_formats.h"

namespace sluice {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string node(const TraceTask& task) {
  return fmt::format("    t{} [label=\"{}\\n{}\\n{:.1f} us\"];\n", task.id,
                     escaped(task_label(task)), escaped(task_place(task)),
                     static_cast<double>(task.duration_ns()) * 1e-3);
}

}  // namespace

std::string trace_as_dot(const Trace& trace) {
  constexpr std::int64_t outside = -1;
  std::map<std::int64_t, std::vector<const TraceTask*>> iterations;
  for (const TraceTask& task : trace.tasks)
    iterations[task.tagged ? task.tag.iteration : outside].push_back(&task);
  std::string text = "digraph tasks {\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (const auto& [iteration, tasks] : iterations) {
    text +=
        iteration == outside
            ? "  subgraph cluster_outside {\n    label=\"outside of iterations\";\n"
            : fmt::format("  subgraph cluster_{0} {{\n    label=\"iteration {0}\";\n", iteration);
    for (const TraceTask* task : tasks) text += node(*task);
    text += "  }\n";
  }
  for (const TraceTask& task : trace.tasks) {
    for (const std::int64_t before : task.after)
      text += fmt::format("  t{} -> t{};\n", before, task.id);
  }
  return text + "}\n";
}

}  // namespace sluice
