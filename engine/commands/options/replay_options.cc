#include "engine/commands/options/replay_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/replay/options.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

/// Requests where only lengths are given and --requests does not say how many.
constexpr std::int64_t default_requests = 100;

}  // namespace

std::string ReplayWorkloads::name_of(std::size_t kind) const {
  return trace ? name
               : fmt::format("uniform:{},{}", lengths[kind].input_tokens,
                             lengths[kind].output_tokens);
}

std::vector<TracedRequest> ReplayWorkloads::requests(std::size_t kind, const Arrivals& how) const {
  if (trace) return replayed_requests(*trace, how, num_requests, seed);
  return replayed_requests(lengths[kind], how, num_requests.value_or(default_requests), seed);
}

std::int64_t ReplayWorkloads::longest_tokens() const {
  std::int64_t longest = 2;
  for (std::size_t kind = 0; kind < num_kinds(); ++kind) {
    for (const TracedRequest& request : requests(kind, {.kind = ArrivalKind::all}))
      longest = std::max(longest, request.input_tokens + request.output_tokens);
  }
  return longest;
}

Workload ReplayWorkloads::mean_workload(std::size_t kind, std::int64_t max_sequences) const {
  const std::vector<TracedRequest> all = requests(kind, {.kind = ArrivalKind::all});
  Workload workload{
      .batch = std::min(max_sequences, std::ssize(all)), .input_tokens = 0, .output_tokens = 0};
  for (const TracedRequest& request : all) {
    workload.input_tokens += request.input_tokens;
    workload.output_tokens += request.output_tokens;
  }
  workload.input_tokens /= std::ssize(all);
  workload.output_tokens = std::max<std::int64_t>(1, workload.output_tokens / std::ssize(all));
  return workload;
}

void declare_replay_workloads(CommandLine& line) {
  line.options().add_options()  //
      ("trace", po::value<std::string>(),
       "requests with their lengths, and when they come; - reads standard input")  //
      ("format", po::value<std::string>(),
       "of the trace: azure, burstgpt, jsonl, lengths or mooncake; without it, it is recognised")  //
      ("lengths", po::value<std::string>(),
       "uniform:IN,OUT: prompts of about IN tokens and outputs of about OUT, 10 % more or less")  //
      ("arrivals", po::value<std::string>(),
       "when requests come: trace, poisson:RATES (a second), all (at once), or closed:N (so many "
       "in flight); without it trace, or all where there are no times")                          //
      ("requests", po::value<std::int64_t>(), "how many; without it, all of the trace, or 100")  //
      ("seed", po::value<std::int64_t>()->default_value(0),
       "of lengths, gaps and tokens that are drawn");
}

ReplayWorkloads read_replay_workloads(const CommandLine& line) {
  ReplayWorkloads workloads;
  if (line.given("trace") == line.given("lengths"))
    throw UsageError("give one of --trace FILE and --lengths uniform:IN,OUT");
  if (line.given("format") && !line.given("trace")) throw UsageError("--format needs --trace");
  if (line.given("requests"))
    workloads.num_requests = in_range<std::int64_t>(line, "requests", 1, most_replayed_requests);
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  workloads.seed = static_cast<std::uint64_t>(in_range<std::int64_t>(line, "seed", 0, largest));
  if (line.given("arrivals"))
    workloads.arrivals = parse_arrivals(line.get<std::string>("arrivals"));
  if (line.given("lengths")) {
    workloads.lengths = parse_lengths(line.get<std::string>("lengths"));
  } else {
    workloads.name = line.get<std::string>("trace");
    std::optional<TraceFormat> format;
    if (line.given("format")) format = parse_format(line.get<std::string>("format"));
    workloads.trace = read_request_trace(workloads.name, format);
    if (workloads.trace->failed > 0)
      fmt::print(stderr, "sluice: {}: {} failed requests are left out\n", workloads.name,
                 workloads.trace->failed);
  }
  if (workloads.arrivals.empty()) {
    const bool has_times = workloads.trace && workloads.trace->has_arrivals();
    workloads.arrivals = {{.kind = has_times ? ArrivalKind::trace : ArrivalKind::all}};
  }
  return workloads;
}

std::vector<std::string> arguments_of(const ReplayWorkloads& workloads, std::size_t kind,
                                      const Arrivals& how) {
  std::vector<std::string> arguments = {"--arrivals", to_string(how), "--seed",
                                        fmt::format("{}", workloads.seed)};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  if (workloads.trace) {
    add("--trace", workloads.name);
    add("--format", std::string(to_string(workloads.trace->format)));
  } else {
    add("--lengths", workloads.name_of(kind));
  }
  if (workloads.num_requests) add("--requests", fmt::format("{}", *workloads.num_requests));
  return arguments;
}

}  // namespace sluice
