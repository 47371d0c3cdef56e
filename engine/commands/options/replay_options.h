#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/replay/arrivals.h"
#include "perfmodels/footprint.h"

namespace sluice {

class CommandLine;

/// What is replayed: requests of one kind or more, which come in one way or more.
struct ReplayWorkloads {
  std::optional<RequestTrace> trace;    ///< of one kind
  std::vector<UniformLengths> lengths;  ///< without a trace: a kind each
  std::string name;                     ///< the trace's file
  std::vector<Arrivals> arrivals;
  std::optional<std::int64_t> num_requests;
  std::uint64_t seed = 0;

  std::size_t num_kinds() const { return trace ? 1 : lengths.size(); }
  std::string name_of(std::size_t kind) const;
  /// As they come. Throws UsageError where the trace says no times, and these are asked for.
  std::vector<TracedRequest> requests(std::size_t kind, const Arrivals& how) const;
  /// Tokens of the longest request, prompt and output; at least 2.
  std::int64_t longest_tokens() const;
  /// Requests of mean lengths, as many as there are, or `max_sequences`: what policies and plans
  /// for cores are chosen for.
  Workload mean_workload(std::size_t kind, std::int64_t max_sequences) const;
};

/// --trace, --format, --lengths, --arrivals, --requests and --seed.
void declare_replay_workloads(CommandLine& line);
/// What they say, the trace read. Throws UsageError, and Error for a trace that cannot be read.
ReplayWorkloads read_replay_workloads(const CommandLine& line);
/// The arguments that say one of the points.
std::vector<std::string> arguments_of(const ReplayWorkloads& workloads, std::size_t kind,
                                      const Arrivals& how);

}  // namespace sluice
