#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::tokenizers {

/// What stands at the start of some bytes.
struct Utf8Step {
  enum class Kind { character, ill_formed, unfinished };
  Kind kind;
  std::size_t num_bytes;  ///< of the character, or of the longest part that could have begun one
};

/// Looks at the start of `bytes` (not empty). Ill-formed parts are cut as Unicode recommends
/// ("maximal subparts"), so that each one becomes one U+FFFD.
Utf8Step step_utf8(std::string_view bytes);

/// Number of bytes of the character that starts with this byte; the text is known to be
/// well-formed.
std::size_t utf8_length(char first_byte);

/// Code point at the start of well-formed text (not empty).
char32_t decode_utf8(std::string_view text);

void append_utf8(char32_t code_point, std::string& out);

/// Unicode's White_Space (25 characters): what `\s` means to Hugging Face's regex engines.
bool is_white_space(char32_t code_point);

/// The last character of well-formed text (not empty).
std::string_view last_character(std::string_view text);

/// Where the white space at the end of a text begins, not before `limit`.
std::size_t white_space_at_end(std::string_view text, std::size_t limit);

/// Bytes of white space at the start of a text.
std::size_t white_space_at_start(std::string_view text);

}  // namespace sluice::tokenizers
