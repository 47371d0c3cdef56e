#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/subcommands.h"
#include "engine/trace/gantt.h"
#include "engine/trace/trace_analysis.h"
#include "engine/trace/trace_report.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("iterations", po::value<std::string>(),
       "whose critical path is printed, and which are drawn; a list 3,4, default the middle one")  //
      ("gantt", po::value<std::string>(), "draw these iterations into this .svg or .png file")  //
      ("from-ms", po::value<double>(),
       "with --gantt: draw each iteration from this time on, counted from its begin")      //
      ("to-ms", po::value<double>(), "with --gantt: draw each iteration up to this time")  //
      ("json", po::bool_switch(), "print one JSON object, times in ns");
}

Trace read_trace(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error("{}: {}; give the folder that a run with --trace has left", folder,
                fs::exists(folder, ignored) ? "it is a file" : "there is no such folder");
  }
  const std::string path = (fs::path(folder) / "trace.jsonl").string();
  if (!fs::exists(path, ignored)) {
    throw Error("{} holds no trace.jsonl; give the folder that a run with --trace has left",
                folder);
  }
  return trace_from_lines(read_file(path), path);
}

std::vector<std::int64_t> choose_iterations(const CommandLine& line, const Trace& trace) {
  const std::vector<std::int64_t> all = iterations_of(trace);
  if (!line.given("iterations")) {
    if (all.empty()) return {};
    return {all[all.size() / 2]};
  }
  std::vector<std::int64_t> chosen =
      read_list(line, "iterations", 0, std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t iteration : chosen) {
    if (std::find(all.begin(), all.end(), iteration) != all.end()) continue;
    if (all.empty()) throw Error("--iterations {}: the trace has no iterations", iteration);
    throw Error("--iterations {}: the trace has iterations {} to {}", iteration, all.front(),
                all.back());
  }
  return chosen;
}

TimeRange read_range(const CommandLine& line) {
  TimeRange range;
  constexpr double most_ms = 1e9;  // twelve days
  for (const auto& [name, ns] :
       {std::pair("from-ms", &range.from_ns), std::pair("to-ms", &range.to_ns)}) {
    if (!line.given(name)) continue;
    if (!line.given("gantt")) throw UsageError("--{} needs --gantt, which draws the part", name);
    const auto value_ms = line.get<double>(name);
    if (!(value_ms >= 0 && value_ms <= most_ms))
      throw UsageError("--{} {}: expected a time in ms from 0 to {:.0f}", name, value_ms, most_ms);
    *ns = std::llround(value_ms * 1e6);
  }
  if (range.from_ns >= range.to_ns)
    throw UsageError("--to-ms {}: expected more than --from-ms",
                     static_cast<double>(range.to_ns) * 1e-6);
  return range;
}

}  // namespace

int run_trace(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice trace DIR [options]",
      "Reads what generate, bench or simulate --trace DIR has left: what each worker and link "
      "did, the longest gaps and their causes, the critical path of an iteration.");
  declare_options(line);
  line.accept_operand();
  if (!line.parse(arguments)) return 0;
  if (line.operand().empty())
    throw UsageError("give the folder that a run with --trace has left: sluice trace DIR");
  const PictureFormat format = line.given("gantt")
                                   ? picture_format("gantt", line.get<std::string>("gantt"))
                                   : PictureFormat::svg;
  const TimeRange range = read_range(line);
  const Trace trace = read_trace(line.operand());
  const std::vector<std::int64_t> iterations = choose_iterations(line, trace);
  if (line.given("gantt")) {
    if (iterations.empty()) throw Error("{}: the trace has no iterations to draw", line.operand());
    write_file(line.get<std::string>("gantt"), draw_gantt(trace, iterations, format, range));
  }
  std::cout << (line.get<bool>("json") ? trace_as_json(trace, iterations)
                                       : trace_as_text(trace, iterations));
  if (trace.num_lost > 0) {
    fmt::print(stderr, "sluice: the trace lacks {} tasks; its figures are too small\n",
               trace.num_lost);
  }
  return 0;
}

}  // namespace sluice
