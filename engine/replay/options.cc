#include "engine/replay/options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double least_rate_per_s = 1e-6;
constexpr double most_rate_per_s = 1e6;
constexpr double most_slo_s = 1e6;
/// 1.1 times as many still is a length that a trace may have.
constexpr std::int64_t most_middle_tokens = most_traced_tokens / 2;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The whole of `text` as a number of [low, high].
template <typename Number>
std::optional<Number> number_within(std::string_view text, Number low, Number high) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || read_to != end) return std::nullopt;
  if (!(value >= low && value <= high)) return std::nullopt;
  return value;
}

std::vector<Arrivals> parse_rates(std::string_view rates, const std::string& text) {
  std::vector<Arrivals> all;
  for (const std::string_view item : split(rates, ',')) {
    const auto rate = number_within(item, least_rate_per_s, most_rate_per_s);
    if (!rate) {
      throw UsageError("--arrivals {}: expected rates from {} to {} requests/s, like poisson:1,2.5",
                       text, least_rate_per_s, most_rate_per_s);
    }
    const Arrivals arrivals{.kind = ArrivalKind::poisson, .rate_per_s = *rate};
    if (std::find(all.begin(), all.end(), arrivals) == all.end()) all.push_back(arrivals);
  }
  return all;
}

}  // namespace

std::vector<Arrivals> parse_arrivals(const std::string& text) {
  if (text == "trace") return {{.kind = ArrivalKind::trace}};
  if (text == "all") return {{.kind = ArrivalKind::all}};
  constexpr std::string_view poisson = "poisson:";
  if (text.starts_with(poisson)) return parse_rates(text.substr(poisson.size()), text);
  constexpr std::string_view closed = "closed:";
  if (text.starts_with(closed)) {
    const auto count = number_within<std::int64_t>(std::string_view(text).substr(closed.size()), 1,
                                                   most_replayed_requests);
    if (count) return {{.kind = ArrivalKind::closed, .in_flight = *count}};
    throw UsageError("--arrivals {}: expected a whole number from 1 to {}, like closed:8", text,
                     most_replayed_requests);
  }
  throw UsageError("--arrivals {}: expected trace, poisson:RATES, all or closed:N", text);
}

std::vector<UniformLengths> parse_lengths(const std::string& text) {
  constexpr std::string_view uniform = "uniform:";
  const std::vector<std::string_view> items = split(text, ',');
  const auto tokens = [](std::string_view item) {
    return number_within<std::int64_t>(item, 1, most_middle_tokens);
  };
  std::vector<UniformLengths> lengths;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const bool whole = items[i].starts_with(uniform) && i + 1 < items.size();
    const auto in = whole ? tokens(items[i].substr(uniform.size())) : std::nullopt;
    const auto out = whole ? tokens(items[i + 1]) : std::nullopt;
    if (!in || !out) {
      throw UsageError(
          "--lengths {}: expected input and output tokens from 1 to {}, like "
          "uniform:1000,100 or uniform:1000,50,uniform:1000,100",
          text, most_middle_tokens);
    }
    lengths.push_back({.input_tokens = *in, .output_tokens = *out});
  }
  return lengths;
}

Slo parse_slo(const std::string& text) {
  Slo slo;
  for (const std::string_view item : split(text, ',')) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals);
    const auto seconds =
        number_within<double>(item.substr(std::min(equals + 1, item.size())), 0, most_slo_s);
    std::optional<double>* const target =
        name == "ttft" ? &slo.ttft_s : (name == "tpot" ? &slo.tpot_s : nullptr);
    if (target == nullptr || target->has_value() || !seconds || *seconds == 0) {
      throw UsageError("--slo {}: expected seconds above 0, each once, like ttft=1,tpot=0.1", text);
    }
    *target = seconds;
  }
  return slo;
}

TraceFormat parse_format(const std::string& text) {
  if (const auto format = parse_trace_format(text)) return *format;
  throw UsageError("--format {}: expected azure, burstgpt, jsonl, lengths or mooncake", text);
}

}  // namespace sluice
