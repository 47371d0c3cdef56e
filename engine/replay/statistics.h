#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice {

/// What became of a request. Times are seconds of one clock, real or virtual, that starts anywhere.
struct FinishedRequest {
  double arrival_s = 0;            ///< when it was scheduled to come, however late it was looked at
  double admitted_s = 0;           ///< first row of its prompt computed from here on
  double first_token_s = 0;        ///< its first token was there
  double last_token_s = 0;         ///< its last token was there
  std::int64_t output_tokens = 0;  ///< at least 1, unless rejected
  bool rejected = false;           ///< it was refused: the times after arrival_s mean nothing

  /// (last token - scheduled arrival) / output tokens, as NEO's figure 6 counts.
  double per_token_latency_s() const {
    return (last_token_s - arrival_s) / static_cast<double>(output_tokens);
  }
  double ttft_s() const { return first_token_s - arrival_s; }
  double queue_s() const { return admitted_s - arrival_s; }
  /// Nothing for an output of a single token.
  std::optional<double> tpot_s() const {
    if (output_tokens < 2) return std::nullopt;
    return (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1);
  }
};

/// The value below which a share of all values lies, `share` in [0, 1]: linear between the two
/// values around place (n - 1) x share of the sorted ones, as numpy.percentile does by default.
/// `values` is not empty.
double percentile(std::vector<double> values, double share);

struct Distribution {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
/// Nothing for no values.
std::optional<Distribution> distribution(const std::vector<double>& values);

/// What a request must keep to; a target that is not given is kept by all.
struct Slo {
  std::optional<double> ttft_s = std::nullopt;
  std::optional<double> tpot_s = std::nullopt;
};

struct ReplayStatistics {
  std::int64_t requests = 0;
  std::int64_t completed = 0;
  std::int64_t rejected = 0;
  /// Between the completions at 30 % and at 70 % of them: those after the first up to the second,
  /// divided by the time between. Nothing where no time lies between.
  std::optional<double> requests_per_s;
  /// The output tokens of the same requests, divided by the same time.
  std::optional<double> output_tokens_per_s;
  /// Of completed requests, without the first quarter of all requests to come, which find an engine
  /// that is emptier than it will be. Nothing where no such request was completed.
  std::optional<Distribution> per_token_latency_s;
  std::optional<Distribution> ttft_s;
  std::optional<Distribution> tpot_s;  ///< of outputs of two tokens and more
  std::optional<Distribution> queue_s;
  /// Share of the requests behind the first quarter that keep the SLO; a rejected one does not, and
  /// an output of one token has a TTFT alone. Nothing without an SLO or requests.
  std::optional<double> slo_attainment;
};

/// In any order of requests.
ReplayStatistics replay_statistics(std::vector<FinishedRequest> requests,
                                   const std::optional<Slo>& slo = std::nullopt);

/// A point of a load-latency curve.
struct LoadPoint {
  double rate_per_s = 0;
  double slo_attainment = 0;
};
inline constexpr double goodput_attainment = 0.9;
/// The highest rate at which 90 % of the requests keep the SLO, of those that were tried; nothing
/// where there is none.
std::optional<double> goodput_per_s(const std::vector<LoadPoint>& points);

struct TimeWindow {
  double from_s = 0;
  double to_s = 0;  ///< after from_s
};

/// Little's law: the mean number of requests in the system is the rate at which they come times the
/// mean time that each stays.
struct LittlesLaw {
  TimeWindow window;
  double mean_in_system = 0;  ///< by time
  double arrivals_per_s = 0;  ///< of requests that were not rejected
  double mean_time_s = 0;  ///< from scheduled arrival to last token, of those that came in window
  /// |mean_in_system - arrivals_per_s x mean_time_s| / mean_in_system
  double relative_error = 0;
};

/// How many requests the engine says it has, from `time_s` to the next count.
struct SystemCount {
  double time_s = 0;
  std::int64_t in_system = 0;  ///< waiting, running or swapped out
};

/// From the first arrival to the last completion, with the engine's own counts. Within it the law
/// holds exactly, so that a difference is one between the counts and the requests' times. Counts
/// that are taken only between iterations see a request up to one iteration late. Nothing where no
/// request was completed, or where no time passed.
std::optional<LittlesLaw> littles_law(const std::vector<FinishedRequest>& requests,
                                      const std::vector<SystemCount>& counts);

/// In any window, with counts by the requests' own times. It holds as far as the system is in a
/// steady state: requests in the system at either end of the window stay outside of it in part.
std::optional<LittlesLaw> littles_law(const std::vector<FinishedRequest>& requests,
                                      TimeWindow window);

}  // namespace sluice
