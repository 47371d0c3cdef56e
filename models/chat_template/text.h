#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Texts as Python's str has them: counted in characters, cut where Python cuts. All are well-formed
// UTF-8. Letters have Unicode's simple case mappings, and the sharp s becomes SS.
namespace sluice::jinja {

std::size_t num_characters(std::string_view text);
/// Byte offset of a character; the text's size from its end on.
std::size_t character_offset(std::string_view text, std::size_t character);
std::vector<std::string_view> characters(std::string_view text);

enum class Side : std::uint8_t { left, right, both };
/// Without the characters of `set` at its ends.
std::string_view stripped(std::string_view text, std::string_view set, Side side);
/// The same for white space.
std::string_view stripped(std::string_view text, Side side);

/// What str.split() without a separator gives; the rest behind `most` splits is kept together.
std::vector<std::string_view> split_at_space(std::string_view text, std::size_t most);
std::vector<std::string_view> split_at_space_from_right(std::string_view text, std::size_t most);
enum class LineEnds : std::uint8_t { keep, drop };
std::vector<std::string_view> split_lines(std::string_view text, LineEnds ends);

std::string upper_case(std::string_view text);
std::string lower_case(std::string_view text);
std::string swapped_case(std::string_view text);
std::string capitalized(std::string_view text);  ///< the first letter only
std::string title_case(std::string_view text);   ///< str.title(): each letter behind none
std::string title_words(std::string_view text);  ///< the filter title: behind spaces, - and ( [ { <

bool is_space(char32_t character);
bool is_letter(char32_t character);
bool is_digit(char32_t character);
bool is_number(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);
/// Whether there is a letter with cases, and all of them are upper or lower ones.
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

/// Occurrences of `from` (not empty: also between all characters) become `to`, at most `most`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::size_t most);
/// How often it stands there without overlap; an empty one once more than there are characters.
std::size_t count_of(std::string_view text, std::string_view part);

std::string escaped_html(std::string_view text);
/// How many bytes at the start are printable ASCII and none of `special`.
std::size_t plain_start(std::string_view text, std::string_view special);
/// repr(): in quotes.
std::string quoted_text(std::string_view text);
/// repr(): the shortest digits that give the number back.
std::string float_text(double value);

}  // namespace sluice::jinja
