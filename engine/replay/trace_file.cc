#include "engine/replay/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/replay/trace_csv.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, TraceFormat>, 5> format_names = {
    {{"azure", TraceFormat::azure},
     {"burstgpt", TraceFormat::burstgpt},
     {"jsonl", TraceFormat::jsonl},
     {"lengths", TraceFormat::lengths},
     {"mooncake", TraceFormat::mooncake}}};

/// The lines of a text, numbered from 1; those of blanks are passed over.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  bool next() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      line_ = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      if (line_.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
    return false;
  }
  std::string_view line() const { return line_; }
  std::int64_t number() const { return number_; }
  std::string place(const std::string& path) const {
    return fmt::format("{}, line {}", path, number_);
  }

 private:
  std::string_view rest_;
  std::string_view line_;
  std::int64_t number_ = 0;
};

/// Gathers requests; times of any zero become arrivals after the first request.
class TraceBuilder {
 public:
  explicit TraceBuilder(TraceFormat format) { trace_.format = format; }

  /// Throws Error, which begins with `place`, when `time_ns` lies ahead of the request above.
  void add(TracedRequest request, std::int64_t time_ns, const std::string& place) {
    if (trace_.requests.empty()) first_ns_ = before_ns_ = time_ns;
    if (time_ns < before_ns_) {
      throw Error("{}: the request comes {:.9g} s ahead of the one above; sort the file by time",
                  place, static_cast<double>(before_ns_ - time_ns) / 1e9);
    }
    before_ns_ = time_ns;
    request.arrival_s = static_cast<double>(time_ns - first_ns_) / 1e9;
    trace_.requests.push_back(std::move(request));
  }
  void leave_out_failed() { ++trace_.failed; }

  RequestTrace finish(const std::string& path) {
    if (trace_.requests.empty() && trace_.failed > 0) {
      throw Error(
          "{}: its requests all failed ({} with 0 response tokens); give a file with answers", path,
          trace_.failed);
    }
    if (trace_.requests.empty()) throw Error("{}: no requests in it; expected at least one", path);
    return std::move(trace_);
  }

 private:
  RequestTrace trace_;
  std::int64_t first_ns_ = 0;
  std::int64_t before_ns_ = 0;
};

// CSV

/// What the lines of a CSV format hold, by the header's names.
struct CsvColumns {
  TraceFormat format;
  std::string_view time;
  std::string_view input;
  std::string_view output;
};
constexpr std::array<CsvColumns, 2> csv_formats = {
    {{TraceFormat::azure, "TIMESTAMP", "ContextTokens", "GeneratedTokens"},
     {TraceFormat::burstgpt, "Timestamp", "Request tokens", "Response tokens"}}};

bool equal_but_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::size_t> find_column(const std::vector<std::string>& header,
                                       std::string_view name) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (equal_but_case(header[i], name)) return i;
  }
  return std::nullopt;
}

std::vector<std::string> csv_fields(const LineReader& reader, const std::string& path) {
  auto fields = split_csv(reader.line());
  if (!fields) throw Error("{}: a quote is not closed; expected CSV", reader.place(path));
  return *std::move(fields);
}

/// Reads the lines of one CSV format below its header.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& path, const CsvColumns& columns)
      : lines_(text), path_(path), columns_(columns) {
    if (!lines_.next()) throw Error("{}: the file is empty; expected {}", path_, expected());
    const std::vector<std::string> header = csv_fields(lines_, path_);
    num_columns_ = header.size();
    time_ = column(header, columns_.time);
    input_ = column(header, columns_.input);
    output_ = column(header, columns_.output);
  }

  RequestTrace read() {
    TraceBuilder builder(columns_.format);
    while (lines_.next()) read_line(builder);
    return builder.finish(path_);
  }

 private:
  std::string expected() const {
    return fmt::format("a header with the columns {}, {}, {}", columns_.time, columns_.input,
                       columns_.output);
  }

  std::size_t column(const std::vector<std::string>& header, std::string_view name) const {
    if (const auto found = find_column(header, name)) return *found;
    throw Error("{}: no column {} among {}; expected {}", lines_.place(path_), name,
                quote(fmt::format("{}", fmt::join(header, ","))), expected());
  }

  void read_line(TraceBuilder& builder) const {
    const std::vector<std::string> fields = csv_fields(lines_, path_);
    if (fields.size() != num_columns_) {
      throw Error("{}: {} columns, the header has {}; get the file again or correct the line",
                  lines_.place(path_), fields.size(), num_columns_);
    }
    const bool may_fail = columns_.format == TraceFormat::burstgpt;
    if (may_fail && tokens(fields[output_], columns_.output, 0) == 0) {
      builder.leave_out_failed();
      return;
    }
    TracedRequest request;
    request.input_tokens = tokens(fields[input_], columns_.input, 1);
    request.output_tokens = tokens(fields[output_], columns_.output, 1);
    builder.add(std::move(request), time_ns(fields[time_]), lines_.place(path_));
  }

  std::int64_t time_ns(const std::string& text) const {
    const bool dated = columns_.format == TraceFormat::azure;
    const auto found = dated ? parse_timestamp_ns(text) : parse_seconds_ns(text);
    if (found) return *found;
    throw Error("{}: {} is {}, expected {}; correct the line or remove it", lines_.place(path_),
                columns_.time, quote(text),
                dated ? "a time like 2024-05-10 00:00:00.009930+00:00" : "seconds like 12.5");
  }

  std::int64_t tokens(const std::string& text, std::string_view name, std::int64_t least) const {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [read_to, error] = std::from_chars(text.data(), end, value);
    const bool whole = error == std::errc() && read_to == end;
    if (whole && value >= least && value <= most_traced_tokens) return value;
    throw Error(
        "{}: {} is {}, expected a whole number from {} to {}; correct the line or remove it",
        lines_.place(path_), name, quote(text), least, most_traced_tokens);
  }

  LineReader lines_;
  const std::string& path_;
  CsvColumns columns_;
  std::size_t num_columns_ = 0;
  std::size_t time_ = 0;
  std::size_t input_ = 0;
  std::size_t output_ = 0;
};

// JSON

const json& field(const json& object, const char* name, const std::string& place) {
  if (object.is_object()) {
    if (const auto found = object.find(name); found != object.end()) return *found;
  }
  throw Error("{}: no \"{}\" in {}; correct it or remove it", place, name,
              object.is_object() ? "the object" : describe(object));
}

std::int64_t tokens_of(const json& object, const char* name, const std::string& place) {
  const json& value = field(object, name, place);
  if (const auto tokens = whole_number(value, 1, most_traced_tokens)) return *tokens;
  throw Error("{}: \"{}\" is {}, expected a whole number from 1 to {}; correct it or remove it",
              place, name, describe(value), most_traced_tokens);
}

std::int64_t time_ns_of(const json& object, const char* name, double units_per_second,
                        const std::string& place) {
  const json& value = field(object, name, place);
  if (value.is_number()) {
    if (const auto ns = seconds_to_ns(value.get<double>() / units_per_second)) return *ns;
  }
  throw Error("{}: \"{}\" is {}, expected a number from 0 to {:g}; correct it or remove it", place,
              name, describe(value), most_trace_seconds * units_per_second);
}

/// A list of whole numbers that are not negative; empty where the object has no such field.
template <typename Id>
std::vector<Id> ids_of(const json& object, const char* name, const std::string& place) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (!found->is_array())
    throw Error("{}: \"{}\" must be a list of numbers, found {}", place, name, describe(*found));
  std::vector<Id> ids;
  ids.reserve(found->size());
  for (const json& item : *found) {
    const auto id = whole_number(item, 0, std::numeric_limits<Id>::max());
    if (!id) throw Error("{}: \"{}\" has {}, which is no id", place, name, describe(item));
    ids.push_back(static_cast<Id>(*id));
  }
  return ids;
}

std::vector<std::int64_t> prefix_blocks_of(const json& object, std::int64_t input_tokens,
                                           const std::string& place) {
  std::vector<std::int64_t> blocks = ids_of<std::int64_t>(object, "hash_ids", place);
  const std::int64_t most = (input_tokens + traced_block_tokens - 1) / traced_block_tokens;
  if (static_cast<std::int64_t>(blocks.size()) <= most) return blocks;
  throw Error("{}: \"hash_ids\" has {} blocks of {} tokens, but the input has {} tokens", place,
              blocks.size(), traced_block_tokens, input_tokens);
}

void add_mooncake(TraceBuilder& builder, const json& object, const std::string& place) {
  TracedRequest request;
  request.input_tokens = tokens_of(object, "input_length", place);
  request.output_tokens = tokens_of(object, "output_length", place);
  request.prefix_blocks = prefix_blocks_of(object, request.input_tokens, place);
  builder.add(std::move(request), time_ns_of(object, "timestamp", 1000, place), place);
}

void add_ours(TraceBuilder& builder, const json& object, const std::string& place) {
  const std::int64_t time_ns = time_ns_of(object, "arrival_s", 1, place);
  TracedRequest request;
  request.output_tokens = tokens_of(object, "output_tokens", place);
  request.prompt_token_ids = ids_of<std::int32_t>(object, "prompt_token_ids", place);
  const auto num_ids = static_cast<std::int64_t>(request.prompt_token_ids.size());
  request.input_tokens = num_ids > 0 && !object.contains("input_tokens")
                             ? num_ids
                             : tokens_of(object, "input_tokens", place);
  if (num_ids > 0 && (num_ids != request.input_tokens || num_ids > most_traced_tokens)) {
    throw Error("{}: {} \"prompt_token_ids\", but \"input_tokens\" is {}; leave one of them out",
                place, num_ids, request.input_tokens);
  }
  request.prefix_blocks = prefix_blocks_of(object, request.input_tokens, place);
  builder.add(std::move(request), time_ns, place);
}

RequestTrace read_json_lines(std::string_view text, const std::string& path, TraceFormat format) {
  TraceBuilder builder(format);
  LineReader lines(text);
  while (lines.next()) {
    const std::string place = lines.place(path);
    const json object = parse_json_line(lines.line(), place);
    if (format == TraceFormat::mooncake) {
      add_mooncake(builder, object, place);
    } else {
      add_ours(builder, object, place);
    }
  }
  return builder.finish(path);
}

RequestTrace read_lengths(std::string_view text, const std::string& path) {
  const json list = parse_json(text, path, DuplicateKeys::last_wins);
  if (!list.is_array()) {
    throw Error("{}: expected a list like [{{\"prompt\": 269, \"max_tokens\": 42}}], found {}",
                path, describe(list));
  }
  TraceBuilder builder(TraceFormat::lengths);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}, entry {}", path, i + 1);
    TracedRequest request;
    request.input_tokens = tokens_of(list[i], "prompt", place);
    request.output_tokens = tokens_of(list[i], "max_tokens", place);
    builder.add(std::move(request), 0, place);
  }
  return builder.finish(path);
}

// Which format it is

[[noreturn]] void fail_unknown(const std::string& place, std::string_view found) {
  throw Error(
      "{}: {} begins no trace that is known; expected a header (TIMESTAMP,ContextTokens,"
      "GeneratedTokens or Timestamp,...,Request tokens,Response tokens), JSON lines with "
      "\"arrival_s\" or \"timestamp\", or a JSON list of lengths; or give --format",
      place, quote(found));
}

TraceFormat recognise_json_lines(const LineReader& first, const std::string& path) {
  const std::string place = first.place(path);
  const json object = parse_json_line(first.line(), place);
  if (object.contains("arrival_s")) return TraceFormat::jsonl;
  if (object.contains("timestamp")) return TraceFormat::mooncake;
  fail_unknown(place, first.line());
}

TraceFormat recognise(std::string_view text, const std::string& path) {
  LineReader lines(text);
  if (!lines.next()) throw Error("{}: the file is empty; give one that holds requests", path);
  const std::string_view line = lines.line();
  const char first = line[line.find_first_not_of(" \t\r")];
  if (first == '[') return TraceFormat::lengths;
  if (first == '{') return recognise_json_lines(lines, path);
  const std::vector<std::string> header = csv_fields(lines, path);
  // One known column is enough: the reader says which is missing.
  for (const CsvColumns& columns : csv_formats) {
    if (find_column(header, columns.input) || find_column(header, columns.output))
      return columns.format;
  }
  fail_unknown(lines.place(path), line);
}

}  // namespace

std::string_view to_string(TraceFormat format) {
  for (const auto& [name, value] : format_names) {
    if (value == format) return name;
  }
  return "?";
}

std::optional<TraceFormat> parse_trace_format(std::string_view name) {
  for (const auto& [known, value] : format_names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

RequestTrace parse_request_trace(std::string_view text, const std::string& path,
                                 std::optional<TraceFormat> format) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error("{}: no text, there is a NUL byte at offset {}; give the CSV or JSON, unpacked",
                path, nul);
  }
  if (!format) format = recognise(text, path);
  if (*format == TraceFormat::lengths) return read_lengths(text, path);
  for (const CsvColumns& columns : csv_formats) {
    if (columns.format == *format) return CsvReader(text, path, columns).read();
  }
  return read_json_lines(text, path, *format);
}

RequestTrace read_request_trace(const std::string& path, std::optional<TraceFormat> format) {
  return parse_request_trace(read_file(path), path, format);
}

}  // namespace sluice
