#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {

constexpr std::size_t longest_word = 512;
constexpr std::size_t longest_message = 2000;

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7F; }
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// The first `head` bytes, the last `tail`, and between them how many there are.
std::string cut_middle(std::string_view text, std::size_t head, std::size_t tail) {
  std::size_t begin = text.size() - tail;
  while (head > 0 && continues_character(text[head])) --head;
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return fmt::format("{}...[{} bytes]...{}", text.substr(0, head), text.size(), text.substr(begin));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      result += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (!is_control(c)) {
      result += text[i];
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else {
      result += fmt::format("\\x{:02x}", c);
    }
  }
  return result;
}

std::string shortened(std::string_view text, std::size_t longest) {
  constexpr std::size_t head = 60;
  constexpr std::size_t tail = 20;
  return text.size() <= std::max(longest, head + tail) ? std::string(text)
                                                       : cut_middle(text, head, tail);
}

std::string one_line(std::string_view message) {
  std::string spaced(message);
  std::replace(spaced.begin(), spaced.end(), '\n', ' ');
  std::string line;
  for (std::size_t begin = 0; begin < spaced.size();) {
    const std::size_t end = std::min(spaced.find(' ', begin), spaced.size());
    line += shortened(printable(std::string_view(spaced).substr(begin, end - begin)), longest_word);
    if (end < spaced.size()) line += ' ';
    begin = end + 1;
  }
  constexpr std::size_t head = 1400;
  constexpr std::size_t tail = 500;
  return line.size() <= longest_message ? line : cut_middle(line, head, tail);
}

}  // namespace sluice
