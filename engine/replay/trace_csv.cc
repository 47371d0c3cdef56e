#include "engine/replay/trace_csv.h"

#include <charconv>
#include <chrono>
#include <cmath>

namespace sluice {
namespace {

constexpr std::int64_t ns_per_second = 1'000'000'000;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// Takes digits and marks off the front of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }
  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  /// The number that exactly `count` digits are.
  std::optional<int> number(std::size_t count) {
    if (num_digits() < count) return std::nullopt;
    int value = 0;
    for (const char c : rest_.substr(0, count)) value = value * 10 + (c - '0');
    rest_.remove_prefix(count);
    return value;
  }
  /// How many digits come next.
  std::size_t num_digits() const {
    return std::min(rest_.find_first_not_of("0123456789"), rest_.size());
  }

 private:
  std::string_view rest_;
};

std::optional<std::chrono::sys_days> take_date(Scanner& scanner) {
  const auto year = scanner.number(4);
  if (!year || !scanner.take('-')) return std::nullopt;
  const auto month = scanner.number(2);
  if (!month || !scanner.take('-')) return std::nullopt;
  const auto day = scanner.number(2);
  if (!day || *year < 1970 || *year > 2199) return std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day)));
  if (!date.ok()) return std::nullopt;
  return std::chrono::sys_days(date);
}

/// "HH:MM" in minutes.
std::optional<int> take_minutes(Scanner& scanner) {
  const auto hours = scanner.number(2);
  if (!hours || !scanner.take(':')) return std::nullopt;
  const auto minutes = scanner.number(2);
  if (!minutes || *hours > 23 || *minutes > 59) return std::nullopt;
  return *hours * 60 + *minutes;
}

/// ".0099300"; 0 where there is none.
std::optional<std::int64_t> take_fraction_ns(Scanner& scanner) {
  if (!scanner.take('.')) return 0;
  const std::size_t count = scanner.num_digits();
  if (count < 1 || count > 9) return std::nullopt;
  std::int64_t value = *scanner.number(count);
  for (std::size_t i = count; i < 9; ++i) value *= 10;
  return value;
}

/// "+01:30" in minutes; 0 where there is none.
std::optional<int> take_zone(Scanner& scanner) {
  if (scanner.at_end() || scanner.take('Z')) return 0;
  const bool east = scanner.take('+');
  if (!east && !scanner.take('-')) return std::nullopt;
  const auto minutes = take_minutes(scanner);
  if (!minutes) return std::nullopt;
  return east ? *minutes : -*minutes;
}

}  // namespace

std::optional<std::vector<std::string>> split_csv(std::string_view line) {
  std::vector<std::string> fields;
  while (true) {
    line = line.substr(std::min(line.find_first_not_of(" \t\r"), line.size()));
    std::string field;
    if (line.starts_with('"')) {
      std::size_t at = 1;
      while (at < line.size() && (line[at] != '"' || line.substr(at).starts_with("\"\""))) {
        field += line[at];
        at += line[at] == '"' ? 2 : 1;
      }
      if (at >= line.size()) return std::nullopt;
      line.remove_prefix(at + 1);
    }
    const std::size_t comma = line.find(',');
    field += trimmed(line.substr(0, comma));
    fields.push_back(std::move(field));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::optional<std::int64_t> parse_timestamp_ns(std::string_view text) {
  Scanner scanner(text);
  const auto date = take_date(scanner);
  if (!date || (!scanner.take(' ') && !scanner.take('T'))) return std::nullopt;
  const auto minutes = take_minutes(scanner);
  if (!minutes || !scanner.take(':')) return std::nullopt;
  const auto seconds = scanner.number(2);
  if (!seconds || *seconds > 59) return std::nullopt;
  const auto fraction_ns = take_fraction_ns(scanner);
  if (!fraction_ns) return std::nullopt;
  const auto zone = take_zone(scanner);
  if (!zone || !scanner.at_end()) return std::nullopt;
  const std::int64_t days = date->time_since_epoch().count();
  const std::int64_t all_minutes = days * 24 * 60 + *minutes - *zone;
  return (all_minutes * 60 + *seconds) * ns_per_second + *fraction_ns;
}

std::optional<std::int64_t> seconds_to_ns(double seconds) {
  if (!(seconds >= 0 && seconds <= most_trace_seconds)) return std::nullopt;
  return std::llround(seconds * static_cast<double>(ns_per_second));
}

std::optional<std::int64_t> parse_seconds_ns(std::string_view text) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || read_to != end) return std::nullopt;
  return seconds_to_ns(seconds);
}

}  // namespace sluice
