#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

enum class DuplicateKeys : std::uint8_t { last_wins, refuse };

/// Lists and objects in each other: more than any file that we read has.
inline constexpr int most_json_levels = 500;

/// Parses a JSON text. `where` names it in messages. Throws Error (one line) when it is no JSON (a
/// NUL byte behind it included), when an object has a key twice and that is refused, or when it is
/// nested deeper than `deepest`.
nlohmann::json parse_json(std::string_view text, std::string_view where, DuplicateKeys duplicates,
                          int deepest = most_json_levels);

/// The same of one line of a file, which `place` names with its number; the last of equal keys
/// wins.
nlohmann::json parse_json_line(std::string_view text, std::string_view place);

/// The same with the keys of objects in the file's order; of a key that stands twice the last value
/// counts. Takes time in proportion to the text, however many keys an object has.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          int deepest = most_json_levels);

/// The text with each NaN, Infinity and -Infinity, which Python writes and JSON does not know, in
/// quotes: a field that is not read may hold one, and one that is read says what it found.
std::string quote_non_finite(std::string_view text);

/// A JSON value as text, on one line or indented. What is no UTF-8 in it is replaced.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// The value if it is a whole number within [lowest, highest]; 50.0 is one, too. Use it instead of
/// get<int>(), which is undefined for a number that is too large.
std::optional<std::int64_t> whole_number(const nlohmann::json& value, std::int64_t lowest,
                                         std::int64_t highest);
std::optional<std::int64_t> whole_number(const nlohmann::ordered_json& value, std::int64_t lowest,
                                         std::int64_t highest);

/// The text in quotes for a message: control characters escaped, cut when very long.
std::string quote(std::string_view text);

/// A JSON value for a message: as written, cut when very long.
std::string describe(const nlohmann::json& value);
std::string describe_ordered(const nlohmann::ordered_json& value);

}  // namespace sluice
