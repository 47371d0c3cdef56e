#include "models/tokenizers/pattern.h"

#include <cctype>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice::tokenizers {
namespace {

// All of these are written as the inside of a character class.
constexpr std::string_view white_space =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view word_characters = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// PCRE2 10.42 knows Unicode 14; these letters and numbers came with 15 to 16.
constexpr std::string_view letters =
    R"(\p{L}\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65})"
    R"(\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e})"
    R"(\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10})"
    R"(\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d})"
    R"(\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d})"
    R"(\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr std::string_view numbers =
    R"(\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9})"
    R"(\x{1e5f1}-\x{1e5fa})";

// Enough for any pattern in use; an expression that needs more is refused instead of running for
// minutes.
constexpr std::uint32_t match_limit = 4'000'000;

pcre2_code* compile(std::string_view expression, int& error, std::size_t& offset) {
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                       PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                       &offset, nullptr);
}

bool compiles(const std::string& expression) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(expression, error, offset);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  Translator(const std::string& expression, const std::string& where)
      : in_(expression), where_(where) {}

  std::string run() {
    while (pos_ < in_.size()) {
      if (in_[pos_] == '\\') {
        escape();
      } else if (class_depth_ != 0) {
        inside_class();
      } else {
        outside_class();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    throw Error("{}: {} in the regular expression {} is not supported", where_, quote(what),
                quote(in_));
  }

  char peek(std::size_t ahead) const {
    return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0';
  }

  void copy(std::size_t count) {
    out_ += in_.substr(pos_, count);
    pos_ = std::min(in_.size(), pos_ + count);
  }

  void outside_class() {
    if (in_[pos_] == '[') {
      class_depth_ = 1;
      copy(peek(1) == '^' ? 2 : 1);
      if (peek(0) == ']') unsupported("[]");
      return;
    }
    if (in_[pos_] == '(' && peek(1) == '?') check_group();
    if (in_[pos_] == '(' && peek(1) == '*') unsupported("(*");
    copy(1);
  }

  // Only what both engines read the same way: (?: (?= (?! (?> (?<= (?<! and (?i) (?i: (?-i:
  void check_group() const {
    std::size_t i = 2;
    while (peek(i) == 'i' || peek(i) == '-') ++i;
    const char c = peek(i);
    const bool flags = i > 2 && (c == ')' || c == ':');
    const bool behind = c == '<' && (peek(i + 1) == '=' || peek(i + 1) == '!');
    const bool plain = i == 2 && (c == ':' || c == '=' || c == '!' || c == '>' || behind);
    if (!flags && !plain) unsupported(std::string_view(in_).substr(pos_, i + 1));
  }

  void inside_class() {
    if (in_[pos_] == ']') class_depth_ = 0;
    // Nested classes and intersections exist in Oniguruma only.
    if (in_[pos_] == '[' || (in_[pos_] == '&' && peek(1) == '&')) {
      unsupported(std::string_view(in_).substr(pos_, 2));
    }
    copy(1);
  }

  void emit_class(std::string_view items) {
    out_ += class_depth_ != 0 ? std::string(items) : "[" + std::string(items) + "]";
  }

  void emit_negated(std::string_view items, std::string_view what) {
    if (class_depth_ != 0) unsupported(what);
    out_ += "[^" + std::string(items) + "]";
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 's':
        emit_class(white_space);
        break;
      case 'w':
        emit_class(word_characters);
        break;
      case 'S':
        emit_negated(white_space, "\\S in a class");
        break;
      case 'W':
        emit_negated(word_characters, "\\W in a class");
        break;
      case 'p':
      case 'P':
        property();
        return;
      default:
        // Letters and digits with one meaning in both engines; any other escaped letter is refused.
        if (std::isalnum(static_cast<unsigned char>(c)) != 0 &&
            std::string_view("dDrntfaexuAz0").find(c) == std::string_view::npos) {
          unsupported(std::string_view(in_).substr(pos_, 2));
        }
        if (c == '\0') unsupported("\\");
        if (c == 'u') {
          unicode_escape();
        } else {
          copy(1 + utf8_length(c));
        }
        return;
    }
    pos_ += 2;
  }

  // \uHHHH, which PCRE2 writes \x{HHHH}.
  void unicode_escape() {
    const std::string digits = in_.substr(pos_ + 2, 4);
    if (digits.size() != 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      unsupported("\\u");
    }
    out_ += "\\x{" + digits + "}";
    pos_ += 6;
  }

  void property() {
    const std::size_t close = in_.find('}', pos_);
    if (peek(2) != '{' || close == std::string::npos) unsupported("\\p without {}");
    const std::string whole = in_.substr(pos_, close + 1 - pos_);
    const std::string name = in_.substr(pos_ + 3, close - pos_ - 3);
    pos_ = close + 1;
    const std::string_view items = name == "L"   ? letters
                                   : name == "N" ? numbers
                                                 : std::string_view();
    if (!items.empty() && whole[1] == 'p') {
      emit_class(items);
    } else if (!items.empty() && class_depth_ == 0) {
      emit_negated(items, whole);
    } else if (name.size() > 2 && compiles("\\p{sc:" + name + "}")) {
      // A script's name means the Script property; to PCRE2 it means Script_Extensions.
      out_ += whole.substr(0, 3) + "sc:" + name + "}";
    } else {
      out_ += whole;
    }
  }

  const std::string& in_;
  const std::string& where_;
  std::size_t pos_ = 0;
  int class_depth_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_regex(const std::string& expression, const std::string& where) {
  return Translator(expression, where).run();
}

struct Pattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  std::string where;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  /// False when nothing more matches from `from` on.
  bool match(std::string_view text, std::size_t from, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its state on the heap.
      rc = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                       context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      throw Error(
          "{}: the regular expression gave up on a text of {} bytes at byte {} (PCRE2 error {})",
          where, text.size(), from, rc);
    }
    return true;
  }
};

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& expression, const std::string& where) {
  const std::string translated = translate_regex(expression, where);
  auto compiled = std::make_shared<Compiled>();
  compiled->where = where;
  int error = 0;
  std::size_t offset = 0;
  compiled->code = compile(translated, error, offset);
  if (compiled->code == nullptr) {
    char message[128] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw Error("{}: the regular expression {} does not compile: {}", where, quote(expression),
                message);
  }
  compiled->context = pcre2_match_context_create(nullptr);
  if (compiled->context == nullptr) throw Error("{}: out of memory", where);
  pcre2_set_match_limit(compiled->context, match_limit);
  // Where JIT code may not be made, the interpreter runs: slower, the same matches.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  Pattern pattern;
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

std::vector<Span> Pattern::find_all_literal(std::string_view text) const {
  std::vector<Span> spans;
  if (literal_.empty()) return spans;
  std::size_t at = text.find(literal_);
  while (at != std::string_view::npos) {
    spans.push_back({at, at + literal_.size()});
    at = text.find(literal_, at + literal_.size());
  }
  return spans;
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (!compiled_) return find_all_literal(text);
  std::vector<Span> spans;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), &pcre2_match_data_free);
  if (!data) throw Error("{}: out of memory", compiled_->where);
  const std::size_t* range = pcre2_get_ovector_pointer(data.get());
  std::size_t from = 0;
  while (from <= text.size() && compiled_->match(text, from, data.get())) {
    // A look-ahead with \K could end before its start; \K is refused above, this guards the loop
    // anyway.
    const Span span{range[0], std::max(range[0], range[1])};
    if (span.empty() && !spans.empty() && spans.back().end == span.end) {
      from += from < text.size() ? utf8_length(text[from]) : 1;
    } else {
      spans.push_back(span);
      from = span.end;
    }
  }
  return spans;
}

}  // namespace sluice::tokenizers
