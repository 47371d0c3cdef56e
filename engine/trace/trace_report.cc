#include "engine/trace/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "base/units.h"
#include "engine/console/tables.h"
#include "engine/trace/trace_analysis.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t num_gaps = 10;

std::string ms(std::int64_t ns) { return fmt::format("{:.3f} ms", static_cast<double>(ns) * 1e-6); }

std::string share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return "0.0 %";
  return fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string worker_name(const Trace& trace, int id) {
  for (const TraceWorker& worker : trace.workers) {
    if (worker.id == id) return worker.name;
  }
  return "?";
}

std::string describe(const TraceTask* task) {
  return task == nullptr ? "the end" : fmt::format("{}, {}", task_label(*task), task_place(*task));
}

std::string workers_table(const Trace& trace) {
  TableRows rows = {{"worker", "tasks", "busy", "share", "idle", "transfers", "overlap"}};
  for (const WorkerUse& use : worker_use(trace)) {
    rows.push_back({use.worker.name, std::to_string(use.num_tasks), ms(use.busy_ns),
                    share(use.busy_ns, trace.duration_ns), ms(use.idle_ns), ms(use.transfer_ns),
                    ms(use.overlap_ns)});
  }
  return format_table(rows);
}

std::string sublayers_table(const Trace& trace) {
  TableRows rows = {{"sublayer", "busy", "share"}};
  std::array<std::int64_t, num_sublayers> sums{};
  std::int64_t all = 0;
  for (const WorkerUse& use : worker_use(trace)) {
    all += use.busy_ns;
    for (std::size_t i = 0; i < num_sublayers; ++i) sums.at(i) += use.sublayer_ns.at(i);
  }
  for (std::size_t i = 0; i < num_sublayers; ++i) {
    if (sums.at(i) == 0) continue;
    rows.push_back(
        {std::string(to_string(static_cast<Sublayer>(i))), ms(sums.at(i)), share(sums.at(i), all)});
  }
  if (rows.size() == 1) return "";
  std::string predicted;
  for (const TraceWorker& worker : trace.workers) {
    if (worker.predicted_sublayers)
      predicted += (predicted.empty() ? "" : ", ") + printable(worker.name);
  }
  if (!predicted.empty())
    predicted = "stages on " + predicted + ": divided as the cost model predicts their sublayers\n";
  return format_table(rows) + predicted;
}

std::string links_table(const Trace& trace) {
  const std::vector<LinkUse> uses = link_use(trace);
  if (uses.empty()) return "no transfers\n";
  TableRows rows = {{"link", "transfers", "bytes", "busy", "rate", "overlap with work"}};
  for (const LinkUse& use : uses) {
    const double rate =
        use.busy_ns > 0 ? static_cast<double>(use.bytes) / static_cast<double>(use.busy_ns) : 0;
    rows.push_back({node_label(trace, use.from) + " to " + node_label(trace, use.to),
                    std::to_string(use.num_transfers),
                    format_bytes(static_cast<std::uint64_t>(use.bytes)), ms(use.busy_ns),
                    fmt::format("{:.2f} GB/s", rate), share(use.overlap_ns, use.busy_ns)});
  }
  return format_table(rows);
}

std::map<int, std::int64_t> peak_memory(const Trace& trace) {
  std::map<int, std::int64_t> peaks;
  for (const TraceMemory& memory : trace.memory)
    peaks[memory.node] = std::max(peaks[memory.node], memory.bytes);
  return peaks;
}

std::string gap_cause(const TraceGap& gap, const TaskIndex& index) {
  if (gap.cause != GapCause::dependency) return std::string(to_string(gap.cause));
  return "dependency on " + (gap.waited_for < 0 ? "data that the program holds"
                                                : describe(index.find(gap.waited_for)));
}

std::string gaps_table(const Trace& trace) {
  const TaskIndex index(trace);
  TableRows rows = {{"at", "gap", "worker", "before", "waiting for"}};
  for (const TraceGap& gap : longest_gaps(trace, num_gaps)) {
    rows.push_back({ms(gap.start_ns), ms(gap.duration_ns()), worker_name(trace, gap.worker),
                    describe(index.find(gap.next)), gap_cause(gap, index)});
  }
  if (rows.size() == 1) return "no gaps\n";
  return format_table(rows) + "iteration 3.1 is sub-batch 1 of iteration 3; both count from 0\n";
}

std::string path_text(const Trace& trace, std::int64_t iteration) {
  const IterationPath path = critical_path(trace, iteration);
  std::string text = fmt::format(
      "iteration {}: {} from the first task to the last; critical path {} ({}): {} of {} tasks {}, "
      "transfers {}\n",
      iteration, ms(path.duration_ns()), ms(path.length_ns()),
      share(path.length_ns(), path.duration_ns()), path.chain.size(), path.num_tasks,
      ms(path.task_ns), ms(path.transfer_ns));
  std::string parts;
  for (std::size_t i = 0; i < num_sublayers; ++i) {
    const std::int64_t ns = path.sublayer_ns.at(i);
    if (ns == 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "  on it: " : ", ",
                         to_string(static_cast<Sublayer>(i)), share(ns, path.task_ns));
  }
  return parts.empty() ? text : text + parts + "\n";
}

Json gaps_json(const Trace& trace) {
  Json gaps = Json::array();
  for (const TraceGap& gap : longest_gaps(trace, num_gaps)) {
    gaps.push_back({{"worker", gap.worker},
                    {"start_ns", gap.start_ns},
                    {"duration_ns", gap.duration_ns()},
                    {"cause", to_string(gap.cause)},
                    {"next_task", gap.next},
                    {"waited_for", gap.waited_for}});
  }
  return gaps;
}

Json path_json(const Trace& trace, std::int64_t iteration) {
  const IterationPath path = critical_path(trace, iteration);
  Json json = {{"iteration", iteration},
               {"start_ns", path.start_ns},
               {"duration_ns", path.duration_ns()},
               {"tasks", path.num_tasks},
               {"critical_path_ns", path.length_ns()},
               {"critical_path_task_ns", path.task_ns},
               {"critical_path_transfer_ns", path.transfer_ns},
               {"critical_path", path.chain}};
  return json;
}

Json workers_json(const Trace& trace) {
  Json workers = Json::array();
  for (const WorkerUse& use : worker_use(trace)) {
    Json sublayers = Json::object();
    for (std::size_t i = 0; i < num_sublayers; ++i) {
      if (use.sublayer_ns.at(i) > 0)
        sublayers[std::string(to_string(static_cast<Sublayer>(i)))] = use.sublayer_ns.at(i);
    }
    workers.push_back({{"id", use.worker.id},
                       {"name", use.worker.name},
                       {"tasks", use.num_tasks},
                       {"busy_ns", use.busy_ns},
                       {"idle_ns", use.idle_ns},
                       {"transfer_ns", use.transfer_ns},
                       {"overlap_ns", use.overlap_ns},
                       {"sublayer_ns", sublayers},
                       {"predicted_sublayers", use.worker.predicted_sublayers}});
  }
  return workers;
}

}  // namespace

std::string trace_as_text(const Trace& trace, const std::vector<std::int64_t>& iterations) {
  std::string text =
      fmt::format("{} traced: {} tasks, {} iterations, {} transfers\n", ms(trace.duration_ns),
                  trace.tasks.size(), iterations_of(trace).size(), trace.transfers.size());
  for (const auto& [node, bytes] : peak_memory(trace)) {
    text += fmt::format("most memory in use on {}: {}\n", node_label(trace, node),
                        format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, bytes))));
  }
  text += "\n" + workers_table(trace) + "\n" + links_table(trace) + "\n";
  const std::string sublayers = sublayers_table(trace);
  if (!sublayers.empty()) text += sublayers + "\n";
  text += "the longest gaps\n" + gaps_table(trace) + "\n";
  for (const std::int64_t iteration : iterations) text += path_text(trace, iteration);
  return text;
}

std::string trace_as_json(const Trace& trace, const std::vector<std::int64_t>& iterations) {
  Json json = {{"duration_ns", trace.duration_ns}, {"tasks", trace.tasks.size()},
               {"lost_tasks", trace.num_lost},     {"buffer_flushes", trace.num_flushes},
               {"workers", workers_json(trace)},   {"links", Json::array()},
               {"peak_bytes", Json::array()},      {"gaps", gaps_json(trace)},
               {"iterations", Json::array()}};
  for (const LinkUse& use : link_use(trace)) {
    json["links"].push_back({{"from", use.from},
                             {"to", use.to},
                             {"transfers", use.num_transfers},
                             {"bytes", use.bytes},
                             {"busy_ns", use.busy_ns},
                             {"overlap_ns", use.overlap_ns}});
  }
  for (const auto& [node, bytes] : peak_memory(trace))
    json["peak_bytes"].push_back({{"node", node}, {"bytes", bytes}});
  for (const std::int64_t iteration : iterations)
    json["iterations"].push_back(path_json(trace, iteration));
  return json_text(json, 2) + "\n";
}

}  // namespace sluice
