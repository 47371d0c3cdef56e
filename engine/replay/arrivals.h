#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/replay/trace_file.h"

namespace sluice {

/// Lengths that are drawn: each a whole number of [0.9 l, 1.1 l], all as likely, inputs and outputs
/// independently (NEO section 5.1).
struct UniformLengths {
  std::int64_t input_tokens = 0;   ///< l of the inputs
  std::int64_t output_tokens = 0;  ///< l of the outputs
};

enum class ArrivalKind : std::uint8_t {
  trace,    ///< as the trace says
  poisson,  ///< gaps are exponentially distributed; the first request comes at once
  all,      ///< all at once
  closed,   ///< so many at once; each that ends lets the next one come
};

struct Arrivals {
  ArrivalKind kind = ArrivalKind::trace;
  double rate_per_s = 0;       ///< poisson
  std::int64_t in_flight = 0;  ///< closed

  bool operator==(const Arrivals&) const = default;
};
/// As --arrivals takes it: "trace", "poisson:2.5", "all" or "closed:8".
std::string to_string(const Arrivals& arrivals);

inline constexpr std::int64_t most_replayed_requests = 10'000'000;

/// The requests that are replayed at a point, in the order in which they come, arrival_s within.
/// - Of a trace: its first `num_requests` in the order of the file (nothing: all). Where it has
///   fewer it begins anew, one mean gap after its last request.
/// - The same seed gives the same lengths, whatever the arrivals, and the same gaps times rate,
///   whatever the rate.
/// - closed: all arrival_s are 0. A request comes when the one `in_flight` places ahead has ended.
/// Throws UsageError when the trace says no times and arrivals ask for them, and for a number of
/// requests beyond [1, most_replayed_requests].
std::vector<TracedRequest> replayed_requests(const RequestTrace& trace, const Arrivals& arrivals,
                                             std::optional<std::int64_t> num_requests,
                                             std::uint64_t seed);
std::vector<TracedRequest> replayed_requests(const UniformLengths& lengths,
                                             const Arrivals& arrivals, std::int64_t num_requests,
                                             std::uint64_t seed);

/// Requests a second from the first to the last; nothing where all come at once.
std::optional<double> arrival_rate_per_s(const std::vector<TracedRequest>& requests);

}  // namespace sluice
