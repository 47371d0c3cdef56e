#include "models/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/text.h"
#include "models/tokenizers/utf8.h"

namespace sluice::jinja {
namespace {

constexpr std::string_view blanks = " \t\n\r\v\f";

/// With "\n" for every line's end, and without the last one.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_name_start(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_' ||
         static_cast<unsigned char>(byte) >= 0x80U;
}
bool is_decimal(char byte) { return byte >= '0' && byte <= '9'; }

/// Python's escapes in a string.
class Unescaper {
 public:
  explicit Unescaper(std::string_view text) : rest_(text) {}

  std::string run() {
    std::string out;
    while (!rest_.empty()) {
      const std::size_t at = std::min(rest_.find('\\'), rest_.size());
      out += rest_.substr(0, at);
      rest_.remove_prefix(at);
      if (rest_.size() < 2) break;
      unescape(out);
    }
    return out += rest_;
  }

 private:
  void unescape(std::string& out) {
    constexpr std::string_view letters = "\\'\"abfnrtv\n";
    constexpr std::string_view meanings = "\\'\"\a\b\f\n\r\t\v";
    const char letter = rest_[1];
    rest_.remove_prefix(2);
    if (const std::size_t known = letters.find(letter); known < meanings.size()) {
      out += meanings[known];
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      constexpr std::size_t byte_digits = 2, short_digits = 4, long_digits = 8;
      take_code(letter == 'x'   ? byte_digits
                : letter == 'u' ? short_digits
                                : long_digits,
                "0123456789abcdef", 16, out);
    } else if (letter >= '0' && letter <= '7') {
      rest_ = {rest_.data() - 1, rest_.size() + 1};
      const std::size_t digits = rest_.find_first_not_of("01234567");
      take_code(std::min<std::size_t>({digits, rest_.size(), 3}), "01234567", 8, out);
    } else if (letter == 'N') {
      throw Error("\\N in a string is not supported; write the character itself");
    } else if (letter != '\n') {
      out += '\\';
      out += letter;
    }
  }

  void take_code(std::size_t num_digits, std::string_view digits, std::uint32_t base,
                 std::string& out) {
    constexpr std::uint32_t highest = 0x10FFFF, first_surrogate = 0xD800, last_surrogate = 0xDFFF;
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < num_digits; ++i) {
      char byte = i < rest_.size() ? rest_[i] : ' ';
      if (byte >= 'A' && byte <= 'F') byte = static_cast<char>(byte - 'A' + 'a');
      const std::size_t digit = digits.find(byte);
      if (digit == std::string_view::npos) throw Error("an escape in a string lacks digits");
      code = code * base + static_cast<std::uint32_t>(digit);
    }
    if (code > highest || (code >= first_surrogate && code <= last_surrogate))
      throw Error("an escape in a string is no character");
    rest_.remove_prefix(num_digits);
    tokenizers::append_utf8(code, out);
  }

  std::string_view rest_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    try {
      while (at_ < source_.size()) lex_data();
    } catch (const Error& error) {
      throw Error("line {}: {}", line_, error.what());
    }
    add(TokenKind::end, "end of template");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }

  void add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::data, text);
  }

  /// The next "{%", "{{" or "{#".
  std::size_t find_tag() const {
    for (std::size_t at = source_.find('{', at_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : ' ';
      if (next == '%' || next == '{' || next == '#') return at;
    }
    return source_.size();
  }

  /// The text in front of a tag, without what its sign or lstrip_blocks takes off.
  std::string_view before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return stripped(text, Side::right);
    if (sign == '+' || is_variable) return text;
    const std::size_t line_end = text.rfind('\n');
    if (line_end == std::string_view::npos && !starts_line_) return text;
    const std::size_t begin = line_end == std::string_view::npos ? 0 : line_end + 1;
    const bool is_blank = stripped(text.substr(begin), Side::left).empty();
    return is_blank ? text.substr(0, begin) : text;
  }

  void lex_data() {
    const std::size_t tag = find_tag();
    const std::string_view text = rest().substr(0, tag - at_);
    if (tag == source_.size()) {
      add_data(text);
      return advance(text.size());
    }
    const char kind = source_[tag + 1];
    std::size_t inside = tag + 2;
    char sign = inside < source_.size() ? source_[inside] : ' ';
    if (sign != '-' && sign != '+') sign = ' ';
    if (sign != ' ') ++inside;
    add_data(before_tag(text, sign, kind == '{'));
    advance(tag - at_);
    if (kind == '#') return skip_comment(inside);
    if (kind == '%' && lex_raw(inside)) return;
    add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "{");
    advance(inside - at_);
    lex_tag(kind == '{');
  }

  /// What follows a tag's end: "-" takes all white space, else a newline goes if `trims`.
  void finish_tag(char sign, bool trims) {
    const std::size_t begin = at_;
    if (sign == '-') {
      advance(rest().size() - stripped(rest(), Side::left).size());
    } else if (sign != '+' && trims && rest().starts_with('\n')) {
      advance(1);
    }
    starts_line_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void skip_comment(std::size_t inside) {
    const std::size_t end = source_.find("#}", inside);
    if (end == std::string::npos) throw Error("a comment has no end: '#}}' is missing");
    const char sign = end > inside ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    finish_tag(sign, true);
  }

  /// Where "raw %}" or "-%}" ends that begins at `at`, and its last sign; nothing for other tags.
  struct RawTag {
    std::size_t end;
    char sign;
  };
  std::optional<RawTag> find_raw_tag(std::size_t at, std::string_view word, bool takes_plus) const {
    at = std::min(source_.find_first_not_of(blanks, at), source_.size());
    const std::string_view text = std::string_view(source_).substr(at);
    if (!text.starts_with(word)) return std::nullopt;
    at = std::min(source_.find_first_not_of(blanks, at + word.size()), source_.size());
    char sign = at < source_.size() ? source_[at] : ' ';
    if (sign == '-' || (sign == '+' && takes_plus)) {
      ++at;
    } else {
      sign = ' ';
    }
    if (!std::string_view(source_).substr(at).starts_with("%}")) return std::nullopt;
    return RawTag{at + 2, sign};
  }

  bool lex_raw(std::size_t inside) {
    const auto begin = find_raw_tag(inside, "raw", false);
    if (!begin) return false;
    advance(begin->end - at_);
    finish_tag(begin->sign, false);
    for (std::size_t at = source_.find("{%", at_); at != std::string::npos;
         at = source_.find("{%", at + 2)) {
      const char sign = at + 2 < source_.size() ? source_[at + 2] : ' ';
      const bool has_sign = sign == '-' || sign == '+';
      const auto end = find_raw_tag(at + (has_sign ? 3 : 2), "endraw", true);
      if (!end) continue;
      add_data(before_tag(rest().substr(0, at - at_), sign, false));
      advance(end->end - at_);
      finish_tag(end->sign, true);
      return true;
    }
    throw Error("a raw block has no end: endraw is missing");
  }

  /// Adds the tokens up to the tag's end.
  void lex_tag(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    const int first_line = line_;
    open_brackets_.clear();
    while (true) {
      advance(std::min(rest().find_first_not_of(blanks), rest().size()));
      if (rest().empty()) {
        line_ = first_line;
        throw Error("a tag has no end: '{}' is missing", close);
      }
      const char sign = rest().front();
      const bool has_sign = sign == '-' || (sign == '+' && !is_variable);
      if (open_brackets_.empty() && rest().substr(has_sign ? 1 : 0).starts_with(close)) {
        add(is_variable ? TokenKind::variable_end : TokenKind::block_end, close);
        advance(close.size() + (has_sign ? 1 : 0));
        return finish_tag(has_sign ? sign : ' ', !is_variable);
      }
      lex_token();
    }
  }

  void lex_token() {
    const char byte = rest().front();
    if (is_decimal(byte)) return lex_number();
    if (is_name_start(byte)) return lex_name();
    if (byte == '"' || byte == '\'') return lex_string(byte);
    lex_symbol();
  }

  /// Digits with single underscores between them, from `from` on in what is left.
  std::size_t digits_end(std::size_t from, std::string_view digits = "0123456789") const {
    const std::string_view text = rest();
    std::size_t at = from;
    while (at < text.size()) {
      const bool skips = at > from && text[at] == '_' && at + 1 < text.size();
      if (digits.find(text[skips ? at + 1 : at]) == std::string_view::npos) break;
      at += skips ? 2 : 1;
    }
    return at;
  }

  void lex_number() {
    const std::string_view text = rest();
    const bool behind_dot = at_ > 0 && source_[at_ - 1] == '.';
    const auto at = [text](std::size_t i) { return i < text.size() ? text[i] : ' '; };
    if (text.front() == '0' && lex_prefixed()) return;
    const std::size_t whole = digits_end(0);
    std::size_t end = whole;
    if (!behind_dot && at(end) == '.' && is_decimal(at(end + 1))) end = digits_end(end + 1);
    if (!behind_dot && (at(end) == 'e' || at(end) == 'E')) {
      const std::size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
      if (is_decimal(at(end + 1 + sign))) end = digits_end(end + 1 + sign);
    }
    std::string digits(text.substr(0, end));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    add(end == whole ? TokenKind::integer : TokenKind::real, digits);
    advance(end);
  }

  /// 0x1F, 0o17 and 0b11 become decimal.
  bool lex_prefixed() {
    struct Prefix {
      char letter;
      std::string_view digits;
      int base;
    };
    constexpr std::array<Prefix, 3> prefixes = {
        {{'x', "0123456789abcdefABCDEF", 16}, {'o', "01234567", 8}, {'b', "01", 2}}};
    const char letter = rest().size() > 2 ? static_cast<char>(rest()[1] | ' ') : ' ';
    for (const Prefix& prefix : prefixes) {
      const std::size_t end = letter == prefix.letter ? digits_end(2, prefix.digits) : 2;
      if (end == 2) continue;
      std::string digits(rest().substr(2, end - 2));
      digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
      constexpr std::size_t most_digits = 63;  // of base 2
      if (digits.size() > most_digits) throw Error("a whole number leaves 64 bits");
      std::size_t used = 0;
      try {
        add(TokenKind::integer, std::to_string(std::stoll(digits, &used, prefix.base)));
      } catch (const std::out_of_range&) {
        throw Error("a whole number leaves 64 bits");
      }
      advance(end);
      return true;
    }
    return false;
  }

  void lex_name() {
    std::size_t end = 1;
    while (end < rest().size() && (is_name_start(rest()[end]) || is_decimal(rest()[end]))) ++end;
    add(TokenKind::name, rest().substr(0, end));
    advance(end);
  }

  void lex_string(char quote_mark) {
    std::size_t end = 1;
    while (end < rest().size() && rest()[end] != quote_mark) end += rest()[end] == '\\' ? 2 : 1;
    if (end >= rest().size()) throw Error("a string has no end");
    add(TokenKind::string, Unescaper(rest().substr(1, end - 1)).run());
    advance(end + 1);
  }

  void lex_symbol() {
    constexpr std::array<std::string_view, 6> pairs = {"//", "**", "==", "!=", "<=", ">="};
    constexpr std::string_view singles = "+-/*%~[](){}<>=.:|,;";
    const auto* const pair = std::find(pairs.begin(), pairs.end(), rest().substr(0, 2));
    if (pair != pairs.end()) {
      add(TokenKind::symbol, *pair);
      return advance(2);
    }
    const char byte = rest().front();
    if (singles.find(byte) == std::string_view::npos)
      throw Error("unexpected character {}", quote(rest().substr(0, 1)));
    track_bracket(byte);
    add(TokenKind::symbol, rest().substr(0, 1));
    advance(1);
  }

  void track_bracket(char byte) {
    constexpr std::string_view opening = "([{";
    constexpr std::string_view closing = ")]}";
    if (const std::size_t kind = opening.find(byte); kind != std::string_view::npos)
      open_brackets_ += closing[kind];
    if (closing.find(byte) == std::string_view::npos) return;
    if (open_brackets_.empty()) throw Error("unexpected '{}'", byte);
    if (open_brackets_.back() != byte)
      throw Error("unexpected '{}', expected '{}'", byte, open_brackets_.back());
    open_brackets_.pop_back();
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;  ///< the text behind the last tag starts a line
  std::string open_brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace sluice::jinja
