#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/replay/statistics.h"

namespace sluice {

/// What an engine has at `time_s`, and keeps until the next sample.
struct ReplaySample {
  double time_s = 0;
  std::int64_t waiting = 0;  ///< have come, and have nothing computed
  std::int64_t running = 0;
  std::int64_t swapped = 0;  ///< of the running ones, those whose KV is not in the first pool
  std::vector<std::int64_t> pool_tokens;  ///< taken of each pool
  std::vector<double> busy_s;             ///< of each resource, from the begin of the replay on
};

/// Samples of a replay, one or more an iteration.
struct ReplayTimeline {
  struct Pool {
    std::string name;         ///< "hbm", "ddr"
    std::int64_t tokens = 0;  ///< its size, above 0
  };
  std::vector<Pool> pools;
  std::vector<std::string> resources;  ///< "cpu", "gpu", "link to gpu", ...
  std::vector<ReplaySample> samples;   ///< time never falls
  double end_s = 0;                    ///< when the last sample ends
};

/// Waiting and running requests together.
std::vector<SystemCount> system_counts(const ReplayTimeline& timeline);

/// Means over equal parts of the time from the first sample to `end_s`: the middle of each part and
/// the mean. Empty where no time passed.
using TimeCurve = std::vector<std::pair<double, double>>;
/// Of a level that each sample has until the next one comes.
TimeCurve mean_levels(const ReplayTimeline& timeline, const std::vector<double>& levels,
                      std::size_t num_parts);
/// Of a sum that grows evenly between samples, and no more behind the last one: its growth a
/// second.
TimeCurve mean_rates(const ReplayTimeline& timeline, const std::vector<double>& sums,
                     std::size_t num_parts);

}  // namespace sluice
