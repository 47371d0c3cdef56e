#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice {

enum class DuplicateKeys : std::uint8_t { last_wins, refuse };

/// Parses a JSON text. `where` names it in messages. Throws Error (one line) when it is no JSON (a
/// NUL byte behind it included), when an object has a key twice and that is refused, or when it is
/// nested deeper than `deepest`.
nlohmann::json parse_json(std::string_view text, std::string_view where, DuplicateKeys duplicates,
                          int deepest = std::numeric_limits<int>::max());

/// The text with each NaN, Infinity and -Infinity, which Python writes and JSON does not know, in
/// quotes: a field that is not read may hold one, and one that is read says what it found.
std::string quote_non_finite(std::string_view text);

/// A JSON value as text, on one line or indented. What is no UTF-8 in it is replaced.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// The text in quotes for a message: control characters escaped, cut when very long.
std::string quote(std::string_view text);

/// A JSON value for a message: as written, cut when very long.
std::string describe(const nlohmann::json& value);

}  // namespace sluice
