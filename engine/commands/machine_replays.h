#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/options/replay_options.h"
#include "engine/commands/options/serving_options.h"
#include "engine/machine/simulated_host.h"
#include "engine/replay/replay_run.h"

namespace sluice {

/// Replays on machines that are described: every combination is a point.
struct MachineReplays {
  std::string model;  ///< shape or folder
  std::vector<std::string> machines;
  std::vector<std::string> policies;  ///< names or files, or any_policy
  std::map<std::string, std::string> policy_options;
  SimulatedHost host;
  ServingSettings serving;  ///< with max_model_len in its limits
  ReplayWorkloads workloads;
  std::optional<Slo> slo;
};

/// How long things take: by the cost model alone, or by StarPU's simulator.
enum class ReplayBy : std::uint8_t { estimate, simulation };

struct ReplayedPoint {
  ReplayPoint point;
  ReplayTimeline timeline;
};

/// By machine, then policy, then kind of requests, then arrivals. What cannot be replayed is said
/// in a line on stderr and left out; where nothing can be, throws Error. Throws Interrupted.
std::vector<ReplayedPoint> replay_on_machines(const MachineReplays& asked, ReplayBy by);

/// What a point is of: everything but its outcome.
ReplayPoint named_point(const ReplayWorkloads& workloads, std::size_t kind,
                        const Arrivals& arrivals, const std::vector<TracedRequest>& requests);

/// Ids that prompts are drawn from: all that the model has.
TokenRange all_tokens(const ModelConfig& model);

}  // namespace sluice
