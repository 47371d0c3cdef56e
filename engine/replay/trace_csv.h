#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// The fields of one line of CSV without blanks around them; fields in double quotes may hold
/// commas, and "" for a quote (RFC 4180). Nothing for a quote that is not closed.
std::optional<std::vector<std::string>> split_csv(std::string_view line);

/// "2024-05-10 00:00:00.0099300+00:00" as nanoseconds since 1970-01-01 UTC. A T may stand for the
/// blank; up to 9 digits of a fraction and the zone (+HH:MM, -HH:MM or Z) may be absent: a time
/// without a zone is UTC. Nothing for any other text, and for dates before 1970 or after 2199.
std::optional<std::int64_t> parse_timestamp_ns(std::string_view text);

/// "12.5" (seconds, not negative, at most most_trace_seconds) as nanoseconds, rounded.
std::optional<std::int64_t> parse_seconds_ns(std::string_view text);
std::optional<std::int64_t> seconds_to_ns(double seconds);

inline constexpr double most_trace_seconds = 4e9;  ///< 126 years

}  // namespace sluice
