#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/engine.h"
#include "engine/replay/arrivals.h"
#include "engine/replay/report.h"
#include "engine/replay/statistics.h"
#include "engine/replay/timeline.h"
#include "engine/replay/traced_prompt.h"
#include "perfmodels/timeline.h"

namespace sluice {

/// Requests to replay through an engine. Every output has the length that is said.
struct ReplayRequests {
  std::vector<TracedRequest> requests;  ///< in the order in which they come
  Arrivals arrivals;
  TokenRange tokens;  ///< that prompts are made of
  std::uint64_t seed = 0;
};

/// The devices and links of a machine, by their names in BusyTimes, and for how long each worked.
std::vector<std::string> resources_of(const CostModel& costs);
std::vector<double> busy_seconds(const CostModel& costs, const BusyTimes& busy);

/// What an engine replays with.
struct ReplayEngine {
  Engine& engine;
  Executor& executor;
  std::span<const KvPool> pools;
  std::vector<std::string> tiers;                       ///< of each pool
  std::vector<std::string> resources;                   ///< devices and links
  std::function<std::vector<double>()> busy_s;          ///< of each resource, so far
  std::function<void(std::int64_t finished)> progress;  ///< may be empty
};

/// What became of a replay.
struct ReplayOutcome {
  std::vector<FinishedRequest> finished;  ///< in the order of their ends
  ReplayTimeline timeline;
  EngineStats stats;
  std::int64_t one_sub_batch_iterations = 0;
  std::int64_t two_sub_batch_iterations = 0;  ///< two and more
};

/// Runs until all requests are finished, or `interrupt` is set. Throws Error when a kernel fails.
ReplayOutcome replay(const ReplayEngine& with, ReplayRequests requests,
                     const std::atomic<bool>& interrupt);

/// The outcome's part of a point. Completed requests over the seconds for which the busiest device
/// or link worked are the lower bound of what the machine could do in the same way.
void add_outcome(ReplayPoint& point, const ReplayOutcome& outcome, const std::optional<Slo>& slo);

}  // namespace sluice
