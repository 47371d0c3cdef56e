#include "engine/replay/arrivals.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "engine/replay/draws.h"

namespace sluice {
namespace {

using Requests = std::vector<TracedRequest>;

void check_count(std::int64_t num_requests) {
  if (num_requests >= 1 && num_requests <= most_replayed_requests) return;
  throw UsageError("--requests {}: expected 1 to {}", num_requests, most_replayed_requests);
}

void check_arrivals(const Arrivals& arrivals, bool has_times) {
  if (arrivals.kind != ArrivalKind::trace || has_times) return;
  throw UsageError(
      "--arrivals trace: only lengths are given, not when requests come; give "
      "poisson:RATE, all or closed:N");
}

/// From the first request to the one after the last, were there one after a mean gap.
double period_s(const Requests& requests) {
  const double last_s = requests.back().arrival_s;
  if (requests.size() < 2) return last_s;
  return last_s + last_s / static_cast<double>(requests.size() - 1);
}

Requests take_requests(const RequestTrace& trace, std::int64_t num_requests) {
  Requests taken;
  taken.reserve(static_cast<std::size_t>(num_requests));
  const double round_s = period_s(trace.requests);
  const std::size_t size = trace.requests.size();
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_requests); ++i) {
    const std::size_t round = i / size;
    taken.push_back(trace.requests[i % size]);
    // Rounded once, whatever a compiler makes of a product and a sum.
    taken.back().arrival_s = std::fma(static_cast<double>(round), round_s, taken.back().arrival_s);
  }
  return taken;
}

std::int64_t draw_length(std::mt19937_64& bits, std::int64_t middle) {
  const std::int64_t lowest = (9 * middle + 9) / 10;  // rounded up
  return draw_whole(bits, lowest, 11 * middle / 10);
}

Requests draw_requests(const UniformLengths& lengths, std::int64_t num_requests,
                       std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  Requests drawn(static_cast<std::size_t>(num_requests));
  for (TracedRequest& request : drawn) {
    request.input_tokens = draw_length(bits, lengths.input_tokens);
    request.output_tokens = draw_length(bits, lengths.output_tokens);
  }
  return drawn;
}

void schedule(Requests& requests, const Arrivals& arrivals, std::uint64_t seed) {
  if (arrivals.kind == ArrivalKind::trace) return;
  for (TracedRequest& request : requests) request.arrival_s = 0;
  if (arrivals.kind != ArrivalKind::poisson) return;
  std::mt19937_64 bits(~seed);  // other bits than the lengths have
  double gaps = 0;              // in mean gaps
  for (std::size_t i = 1; i < requests.size(); ++i) {
    gaps += draw_exponential(bits);
    requests[i].arrival_s = gaps / arrivals.rate_per_s;
  }
}

}  // namespace

std::string to_string(const Arrivals& arrivals) {
  switch (arrivals.kind) {
    case ArrivalKind::trace:
      return "trace";
    case ArrivalKind::poisson:
      return fmt::format("poisson:{}", arrivals.rate_per_s);
    case ArrivalKind::all:
      return "all";
    case ArrivalKind::closed:
      return fmt::format("closed:{}", arrivals.in_flight);
  }
  return "?";
}

std::vector<TracedRequest> replayed_requests(const RequestTrace& trace, const Arrivals& arrivals,
                                             std::optional<std::int64_t> num_requests,
                                             std::uint64_t seed) {
  if (num_requests) check_count(*num_requests);
  check_arrivals(arrivals, trace.has_arrivals());
  Requests requests =
      take_requests(trace, num_requests.value_or(static_cast<std::int64_t>(trace.requests.size())));
  schedule(requests, arrivals, seed);
  return requests;
}

std::vector<TracedRequest> replayed_requests(const UniformLengths& lengths,
                                             const Arrivals& arrivals, std::int64_t num_requests,
                                             std::uint64_t seed) {
  check_count(num_requests);
  check_arrivals(arrivals, false);
  Requests requests = draw_requests(lengths, num_requests, seed);
  schedule(requests, arrivals, seed);
  return requests;
}

std::optional<double> arrival_rate_per_s(const std::vector<TracedRequest>& requests) {
  if (requests.size() < 2) return std::nullopt;
  const double span_s = requests.back().arrival_s - requests.front().arrival_s;
  if (span_s <= 0) return std::nullopt;
  return static_cast<double>(requests.size() - 1) / span_s;
}

}  // namespace sluice
