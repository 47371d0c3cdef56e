#include "models/chat_template/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "models/tokenizers/utf8.h"

namespace sluice::jinja {
namespace {

using tokenizers::append_utf8;
using tokenizers::decode_utf8;
using tokenizers::utf8_length;

constexpr char32_t sharp_s = 0xDF;

utf8proc_category_t category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

void append_upper(char32_t character, std::string& out) {
  if (character == sharp_s) {
    out += "SS";
    return;
  }
  append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<int>(character))), out);
}

void append_title(char32_t character, std::string& out) {
  if (character == sharp_s) {
    out += "Ss";
    return;
  }
  append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<int>(character))), out);
}

void append_lower(char32_t character, std::string& out) {
  append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<int>(character))), out);
}

bool is_cased(char32_t character) {
  return is_upper(character) || is_lower(character) || category(character) == UTF8PROC_CATEGORY_LT;
}

template <typename Change>
std::string changed(std::string_view text, Change change) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i]))
    change(decode_utf8(text.substr(i)), out);
  return out;
}

/// Bytes of characters at the start or the end that `matches`.
template <typename Matches>
std::string_view stripped_while(std::string_view text, Side side, Matches matches) {
  while (side != Side::right && !text.empty() && matches(decode_utf8(text)))
    text.remove_prefix(utf8_length(text.front()));
  while (side != Side::left && !text.empty()) {
    const std::string_view last = tokenizers::last_character(text);
    if (!matches(decode_utf8(last))) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::size_t find_space(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && !is_space(decode_utf8(text.substr(i)))) i += utf8_length(text[i]);
  return i;
}

bool ends_line(char32_t character) {
  constexpr std::array<char32_t, 10> ends = {'\n', '\r', '\v', '\f',   0x1C,
                                             0x1D, 0x1E, 0x85, 0x2028, 0x2029};
  return std::find(ends.begin(), ends.end(), character) != ends.end();
}

bool is_printable(char32_t character) {
  if (character == ' ') return true;
  switch (category(character)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void append_escaped(char32_t character, std::string& out) {
  constexpr char32_t last_byte = 0xFF;
  constexpr char32_t last_short = 0xFFFF;
  const auto code = static_cast<std::uint32_t>(character);
  if (character <= last_byte) {
    out += fmt::format("\\x{:02x}", code);
  } else if (character <= last_short) {
    out += fmt::format("\\u{:04x}", code);
  } else {
    out += fmt::format("\\U{:08x}", code);
  }
}

template <typename IsCase, typename IsOther>
bool all_in_case(std::string_view text, IsCase is_case, IsOther is_other) {
  bool has_case = false;
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const char32_t character = decode_utf8(text.substr(i));
    if (is_other(character) || category(character) == UTF8PROC_CATEGORY_LT) return false;
    has_case |= is_case(character);
  }
  return has_case;
}

}  // namespace

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
  }));
}

std::size_t character_offset(std::string_view text, std::size_t character) {
  std::size_t offset = 0;
  for (; character > 0 && offset < text.size(); --character) offset += utf8_length(text[offset]);
  return offset;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> list;
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i]))
    list.push_back(text.substr(i, utf8_length(text[i])));
  return list;
}

std::string_view stripped(std::string_view text, std::string_view set, Side side) {
  return stripped_while(text, side, [set](char32_t character) {
    std::string bytes;
    append_utf8(character, bytes);
    return set.find(bytes) != std::string_view::npos;
  });
}

std::string_view stripped(std::string_view text, Side side) {
  return stripped_while(text, side, is_space);
}

std::vector<std::string_view> split_at_space(std::string_view text, std::size_t most) {
  std::vector<std::string_view> parts;
  text = stripped(text, Side::left);
  while (!text.empty() && parts.size() < most) {
    const std::size_t end = find_space(text);
    parts.push_back(text.substr(0, end));
    text = stripped(text.substr(end), Side::left);
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_at_space_from_right(std::string_view text, std::size_t most) {
  std::vector<std::string_view> parts;
  text = stripped(text, Side::right);
  while (!text.empty() && parts.size() < most) {
    std::size_t begin = text.size();
    while (begin > 0) {
      const std::string_view last = tokenizers::last_character(text.substr(0, begin));
      if (is_space(decode_utf8(last))) break;
      begin -= last.size();
    }
    parts.push_back(text.substr(begin));
    text = stripped(text.substr(0, begin), Side::right);
  }
  if (!text.empty()) parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, LineEnds ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t end = i;
    const char32_t character = decode_utf8(text.substr(i));
    i += utf8_length(text[i]);
    if (!ends_line(character)) continue;
    if (character == '\r' && text.substr(i).starts_with('\n')) ++i;
    lines.push_back(text.substr(begin, (ends == LineEnds::keep ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string upper_case(std::string_view text) { return changed(text, append_upper); }
std::string lower_case(std::string_view text) { return changed(text, append_lower); }

std::string swapped_case(std::string_view text) {
  return changed(text, [](char32_t character, std::string& out) {
    is_upper(character) ? append_lower(character, out) : append_upper(character, out);
  });
}

std::string capitalized(std::string_view text) {
  bool is_first = true;
  return changed(text, [&is_first](char32_t character, std::string& out) {
    is_first ? append_title(character, out) : append_lower(character, out);
    is_first = false;
  });
}

std::string title_case(std::string_view text) {
  bool behind_letter = false;
  return changed(text, [&behind_letter](char32_t character, std::string& out) {
    behind_letter ? append_lower(character, out) : append_title(character, out);
    behind_letter = is_cased(character);
  });
}

std::string title_words(std::string_view text) {
  bool is_first = true;
  return changed(text, [&is_first](char32_t character, std::string& out) {
    constexpr std::u32string_view openers = U"-({[<";
    const bool separates =
        is_space(character) || openers.find(character) != std::u32string_view::npos;
    is_first ? append_upper(character, out) : append_lower(character, out);
    is_first = separates;
  });
}

bool is_space(char32_t character) {
  constexpr char32_t first_separator = 0x1C;  // Python's: file, group, record and unit separator
  constexpr char32_t last_separator = 0x1F;
  return tokenizers::is_white_space(character) ||
         (character >= first_separator && character <= last_separator);
}

bool is_letter(char32_t character) {
  const auto kind = category(character);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t character) { return category(character) == UTF8PROC_CATEGORY_ND; }

bool is_number(char32_t character) {
  const auto kind = category(character);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t character) { return category(character) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t character) { return category(character) == UTF8PROC_CATEGORY_LL; }

bool is_upper_text(std::string_view text) { return all_in_case(text, is_upper, is_lower); }
bool is_lower_text(std::string_view text) { return all_in_case(text, is_lower, is_upper); }

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::size_t most) {
  std::string out;
  for (; most > 0; --most) {
    // An empty text stands in front of each character and at the end.
    const std::size_t at = from.empty() ? 0 : text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
    if (!from.empty()) continue;
    if (text.empty()) break;
    const std::size_t length = utf8_length(text.front());
    out += text.substr(0, length);
    text.remove_prefix(length);
  }
  return out += text;
}

std::size_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) return num_characters(text) + 1;
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return count;
}

std::string escaped_html(std::string_view text) {
  std::string out;
  for (const char byte : text) {
    switch (byte) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += byte;
    }
  }
  return out;
}

std::size_t plain_start(std::string_view text, std::string_view special) {
  const auto* const end = std::find_if(text.begin(), text.end(), [special](char byte) {
    return byte < ' ' || byte > '~' || special.find(byte) != std::string_view::npos;
  });
  return static_cast<std::size_t>(end - text.begin());
}

std::string quoted_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const std::size_t num_plain = plain_start(text.substr(i), "'\"\\");
    out += text.substr(i, num_plain);
    i += num_plain;
    if (i == text.size()) break;
    const char32_t character = decode_utf8(text.substr(i));
    if (character == static_cast<char32_t>(quote) || character == '\\') {
      out += '\\';
      out += static_cast<char>(character);
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '\r') {
      out += "\\r";
    } else if (character == '\t') {
      out += "\\t";
    } else if (is_printable(character)) {
      append_utf8(character, out);
    } else {
      append_escaped(character, out);
    }
  }
  return out += quote;
}

std::string float_text(double value) {
  constexpr int lowest_exponent = -4;  // Python writes 0.0001, and 1e-05
  constexpr int exponent_limit = 16;
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string_view written(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  const std::size_t mark = written.find('e');
  int exponent = 0;
  const char* digits_of_exponent = written.data() + mark + 1;
  if (*digits_of_exponent == '+') ++digits_of_exponent;
  std::from_chars(digits_of_exponent, end.ptr, exponent);
  if (exponent < lowest_exponent || exponent >= exponent_limit) return std::string(written);
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string text(buffer.data(), fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace sluice::jinja
