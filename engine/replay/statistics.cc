#include "engine/replay/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice {
namespace {

using Requests = std::vector<FinishedRequest>;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double sorted_percentile(const std::vector<double>& sorted, double share) {
  const double place = static_cast<double>(sorted.size() - 1) * share;
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = place - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * weight;
}

void sort_by_arrival(Requests& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
}

/// Only those that were completed, in the order of their last tokens.
Requests by_completion(const Requests& requests) {
  Requests completed;
  std::copy_if(requests.begin(), requests.end(), std::back_inserter(completed),
               [](const FinishedRequest& request) { return !request.rejected; });
  std::stable_sort(completed.begin(), completed.end(),
                   [](const auto& a, const auto& b) { return a.last_token_s < b.last_token_s; });
  return completed;
}

void count_throughput(ReplayStatistics& statistics, const Requests& completed) {
  if (completed.empty()) return;
  const std::size_t begin = completed.size() * 3 / 10;
  const std::size_t end = completed.size() * 7 / 10;
  const double span_s = completed[end].last_token_s - completed[begin].last_token_s;
  // Of requests that end in one iteration, whose tokens come at about the same time, nothing tells.
  double shortest_s = 0;
  for (const FinishedRequest& request : completed) {
    if (const std::optional<double> tpot_s = request.tpot_s())
      shortest_s = shortest_s > 0 ? std::min(shortest_s, *tpot_s) : *tpot_s;
  }
  if (span_s <= 0 || span_s < shortest_s) return;
  std::int64_t tokens = 0;
  for (std::size_t i = begin + 1; i <= end; ++i) tokens += completed[i].output_tokens;
  statistics.requests_per_s = static_cast<double>(end - begin) / span_s;
  statistics.output_tokens_per_s = static_cast<double>(tokens) / span_s;
}

void count_latencies(ReplayStatistics& statistics, const Requests& measured) {
  std::vector<double> per_token;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> queue;
  for (const FinishedRequest& request : measured) {
    if (request.rejected) continue;
    per_token.push_back(request.per_token_latency_s());
    ttft.push_back(request.ttft_s());
    queue.push_back(request.queue_s());
    if (const auto value = request.tpot_s()) tpot.push_back(*value);
  }
  statistics.per_token_latency_s = distribution(per_token);
  statistics.ttft_s = distribution(ttft);
  statistics.tpot_s = distribution(tpot);
  statistics.queue_s = distribution(queue);
}

bool keeps(const FinishedRequest& request, const Slo& slo) {
  if (request.rejected) return false;
  if (slo.ttft_s && request.ttft_s() > *slo.ttft_s) return false;
  const auto tpot_s = request.tpot_s();
  return !slo.tpot_s || !tpot_s || *tpot_s <= *slo.tpot_s;
}

std::optional<double> attainment(const Requests& measured, const Slo& slo) {
  if (measured.empty()) return std::nullopt;
  const auto kept = std::count_if(measured.begin(), measured.end(),
                                  [&](const FinishedRequest& r) { return keeps(r, slo); });
  return static_cast<double>(kept) / static_cast<double>(measured.size());
}

/// The seconds of [from_s, to_s] that lie in the window.
double overlap_s(const TimeWindow& window, double from_s, double to_s) {
  return std::max(0.0, std::min(window.to_s, to_s) - std::max(window.from_s, from_s));
}

/// With the integral of the number in the system over the window, in request-seconds.
std::optional<LittlesLaw> compare(const Requests& requests, TimeWindow window,
                                  double request_seconds) {
  std::vector<double> times_s;
  for (const FinishedRequest& request : requests) {
    if (request.rejected) continue;
    if (request.arrival_s >= window.from_s && request.arrival_s < window.to_s)
      times_s.push_back(request.last_token_s - request.arrival_s);
  }
  const double span_s = window.to_s - window.from_s;
  if (times_s.empty() || !(span_s > 0) || !(request_seconds > 0)) return std::nullopt;
  LittlesLaw law;
  law.window = window;
  law.mean_in_system = request_seconds / span_s;
  law.arrivals_per_s = static_cast<double>(times_s.size()) / span_s;
  law.mean_time_s = mean(times_s);
  law.relative_error =
      std::abs(law.mean_in_system - law.arrivals_per_s * law.mean_time_s) / law.mean_in_system;
  return law;
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return sorted_percentile(values, share);
}

std::optional<Distribution> distribution(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  return Distribution{.mean = mean(values),
                      .p50 = sorted_percentile(sorted, 0.5),
                      .p90 = sorted_percentile(sorted, 0.9),
                      .p99 = sorted_percentile(sorted, 0.99)};
}

ReplayStatistics replay_statistics(std::vector<FinishedRequest> requests,
                                   const std::optional<Slo>& slo) {
  sort_by_arrival(requests);
  const Requests completed = by_completion(requests);
  ReplayStatistics statistics;
  statistics.requests = static_cast<std::int64_t>(requests.size());
  statistics.completed = static_cast<std::int64_t>(completed.size());
  statistics.rejected = statistics.requests - statistics.completed;
  count_throughput(statistics, completed);
  const auto quarter = static_cast<std::ptrdiff_t>(requests.size() / 4);
  const Requests measured(requests.begin() + quarter, requests.end());
  count_latencies(statistics, measured);
  if (slo) statistics.slo_attainment = attainment(measured, *slo);
  return statistics;
}

std::optional<double> goodput_per_s(const std::vector<LoadPoint>& points) {
  std::optional<double> best;
  for (const LoadPoint& point : points) {
    if (point.slo_attainment < goodput_attainment) continue;
    best = std::max(best.value_or(point.rate_per_s), point.rate_per_s);
  }
  return best;
}

std::optional<LittlesLaw> littles_law(const std::vector<FinishedRequest>& requests,
                                      const std::vector<SystemCount>& counts) {
  const Requests completed = by_completion(requests);
  if (completed.empty()) return std::nullopt;
  TimeWindow window = {.from_s = completed.front().arrival_s,
                       .to_s = completed.back().last_token_s};
  for (const FinishedRequest& request : completed)
    window.from_s = std::min(window.from_s, request.arrival_s);
  double request_seconds = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double until_s = i + 1 < counts.size() ? counts[i + 1].time_s : window.to_s;
    request_seconds +=
        static_cast<double>(counts[i].in_system) * overlap_s(window, counts[i].time_s, until_s);
  }
  return compare(completed, window, request_seconds);
}

std::optional<LittlesLaw> littles_law(const std::vector<FinishedRequest>& requests,
                                      TimeWindow window) {
  double request_seconds = 0;
  for (const FinishedRequest& request : requests) {
    if (!request.rejected)
      request_seconds += overlap_s(window, request.arrival_s, request.last_token_s);
  }
  return compare(requests, window, request_seconds);
}

}  // namespace sluice
