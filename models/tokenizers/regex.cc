#include "models/tokenizers/regex.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <variant>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizer.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

constexpr int max_nesting = 100;
constexpr char32_t num_code_points = 0x110000;

/// The expression in parts: text for the engine, or the index of a set.
using Part = std::variant<std::string, std::size_t>;

struct Parsed {
  std::vector<Part> parts;
  std::vector<CodePointSet> sets;
};

bool equals_case_sequence(char32_t first, char32_t second) {
  const auto lowest = [](char32_t c) { return case_variants(c).front(); };
  return std::any_of(case_sequences().begin(), case_sequences().end(), [&](const auto& folding) {
    return folding.sequence[0] == lowest(first) && folding.sequence[1] == lowest(second);
  });
}

bool has_case_sequence(char32_t c) {
  return std::any_of(case_sequences().begin(), case_sequences().end(),
                     [&](const auto& folding) { return folding.character == c; });
}

class Parser {
 public:
  Parser(std::string_view expression, const std::string& where) : in_(expression), where_(where) {}

  Parsed run() {
    while (!at_end()) step();
    if (groups_.size() != 1) unsupported("a ( that is not closed");
    close_option_groups();
    return std::move(out_);
  }

 private:
  struct Group {
    bool ignores_case = false;
    bool dot_takes_newline = false;
    int num_option_groups = 0;  ///< opened by (?i) and the like, closed with this group
  };
  /// One member of a character class.
  struct Item {
    std::optional<char32_t> character;
    CodePointSet set;
  };

  enum class Where : std::uint8_t { outside_class, in_class };

  static std::optional<CodePointSet> named_set(std::string_view name, Where place) {
    const bool is_word = loose_name(name) == "word";
    return is_word && place == Where::in_class ? posix_class("word") : unicode_property(name);
  }

  [[noreturn]] void unsupported(std::string_view what) const {
    throw Error("{}: {} in the regular expression {} is not supported", where_, quote(what),
                quote(in_));
  }

  bool at_end() const { return pos_ >= in_.size(); }
  char peek(std::size_t ahead = 0) const {
    return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0';
  }
  std::string_view rest(std::size_t length) const { return in_.substr(pos_, length); }
  bool accept(std::string_view text) {
    if (!in_.substr(pos_).starts_with(text)) return false;
    pos_ += text.size();
    return true;
  }
  char32_t take_character() {
    const char32_t c = decode_utf8(in_.substr(pos_));
    pos_ += utf8_length(in_[pos_]);
    return c;
  }

  Group& group() { return groups_.back(); }
  void emit(std::string text) { out_.parts.emplace_back(std::move(text)); }
  void emit_set(CodePointSet set) {
    out_.parts.emplace_back(out_.sets.size());
    out_.sets.push_back(std::move(set));
    previous_literal_.reset();
  }

  void step() {
    switch (peek()) {
      case '\\':
        escape();
        return;
      case '[':
        ++pos_;
        emit_set(top_class());
        return;
      case '(':
        open_group();
        return;
      case ')':
        close_group();
        return;
      case '^':
        ++pos_;
        anchor_line_start();
        return;
      case '$':
        ++pos_;
        emit_around("(?=", CodePointSet('\n', '\n'), "|\\z)");
        return;
      case '.':
        ++pos_;
        emit_set(group().dot_takes_newline ? CodePointSet::all()
                                           : CodePointSet('\n', '\n').complement());
        return;
      case '|':
      case '*':
      case '+':
      case '?':
        previous_literal_.reset();
        emit(std::string(1, in_[pos_++]));
        return;
      case '{':
        if (interval()) return;
        break;
      default:
        break;
    }
    literal(take_character());
  }

  void literal(char32_t c) {
    const auto previous = previous_literal_;
    if (!group().ignores_case) {
      emit_set(CodePointSet(c, c));
      return;
    }
    if (has_case_sequence(c) || (previous && equals_case_sequence(*previous, c))) {
      unsupported("(?i) of a letter that equals two others, such as \"ss\",");
    }
    emit_set(with_case_variants(CodePointSet(c, c)));
    previous_literal_ = c;
  }

  void emit_around(std::string before, CodePointSet set, std::string after) {
    emit(std::move(before));
    emit_set(std::move(set));
    emit(std::move(after));
  }

  void anchor_line_start() { emit_around("(?:\\A|(?<=", CodePointSet('\n', '\n'), ")(?!\\z))"); }

  void word_boundary(bool negated) {
    const CodePointSet word = *unicode_property("word");
    emit("(?:(?<=");
    emit_set(word);
    emit(negated ? ")(?=" : ")(?!");
    emit_set(word);
    emit(")|(?<!");
    emit_set(word);
    emit(negated ? ")(?!" : ")(?=");
    emit_set(word);
    emit("))");
  }

  // --- groups

  void open_group() {
    previous_literal_.reset();
    if (rest(2) == "(*") unsupported("(*");
    ++pos_;
    if (!accept("?")) return push_group("(?:");  // nothing refers to what a group matched
    for (const char* kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (accept(kind)) return push_group(std::string("(?") + kind);
    }
    if (accept("#")) return skip_comment();
    if (accept("<")) return named_group('>');
    if (accept("'")) return named_group('\'');
    options();
  }

  void push_group(std::string text) {
    if (groups_.size() > max_nesting) unsupported("so deep a nesting");
    emit(std::move(text));
    Group inner = group();
    inner.num_option_groups = 0;
    groups_.push_back(inner);
  }

  void close_option_groups() {
    for (int i = 0; i < group().num_option_groups; ++i) emit(")");
  }

  void close_group() {
    if (groups_.size() == 1) unsupported("a ) that closes nothing");
    previous_literal_.reset();
    ++pos_;
    close_option_groups();
    groups_.pop_back();
    emit(")");
  }

  void skip_comment() {
    const std::size_t close = in_.find(')', pos_);
    if (close == std::string_view::npos) unsupported("(?#");
    pos_ = close + 1;
  }

  void named_group(char close) {
    const std::size_t end = in_.find(close, pos_);
    if (end == std::string_view::npos || end == pos_) unsupported("(?<");
    pos_ = end + 1;
    push_group("(?:");
  }

  // (?i) holds to the end of the group around it, as if (?i: stood there: a(?i)b|c is a(?i:b|c).
  void options() {
    bool on = true;
    Group changed = group();
    for (;; ++pos_) {
      const char c = peek();
      if (c == '-') {
        on = false;
      } else if (c == 'i') {
        changed.ignores_case = on;
      } else if (c == 'm') {
        changed.dot_takes_newline = on;
      } else {
        break;
      }
    }
    const bool is_open = peek() == ')';
    if (!is_open && peek() != ':') unsupported("(?" + std::string(rest(1)));
    ++pos_;
    if (!is_open) {
      push_group("(?:");
      group().ignores_case = changed.ignores_case;
      group().dot_takes_newline = changed.dot_takes_newline;
      return;
    }
    emit("(?:");
    ++changed.num_option_groups;
    group() = changed;
  }

  // --- quantifiers

  std::optional<std::string> digits() {
    std::string out;
    while (std::isdigit(static_cast<unsigned char>(peek())) != 0) out += in_[pos_++];
    return out.empty() ? std::nullopt : std::optional(out);
  }

  /// {n}, {n,}, {,m} or {n,m}; anything else is a brace like any other character.
  bool interval() {
    const std::size_t start = pos_++;
    const auto low = digits();
    const bool has_comma = accept(",");
    const auto high = has_comma ? digits() : low;
    if (!accept("}") || (!low && !high)) {
      pos_ = start;
      return false;
    }
    // Here a second sign repeats the whole; in PCRE2 it makes the first lazy or possessive.
    if (peek() == '+' || (peek() == '?' && !has_comma))
      unsupported(in_.substr(start, pos_ - start + 1));
    previous_literal_.reset();
    emit("{" + low.value_or("0") + (has_comma ? "," : "") + (has_comma ? high.value_or("") : "") +
         "}");
    return true;
  }

  // --- escapes

  void escape() {
    const std::string_view whole = rest(2);
    if (whole.size() < 2) unsupported("\\");
    if (auto set = set_escape(Where::outside_class)) return emit_set(*std::move(set));
    if (accept("\\A")) return emit("\\A");
    if (accept("\\z")) return emit("\\z");
    if (accept("\\Z")) return emit_around("(?=", CodePointSet('\n', '\n'), "?\\z)");
    if (accept("\\b")) return word_boundary(false);
    if (accept("\\B")) return word_boundary(true);
    literal(character_escape());
  }

  /// \s, \p{L} and the like.
  std::optional<CodePointSet> set_escape(Where place) {
    const char c = peek(1);
    const char* name = nullptr;
    switch (std::tolower(static_cast<unsigned char>(c))) {
      case 's':
        name = "space";
        break;
      case 'w':
        name = "word";
        break;
      case 'd':
        name = "nd";
        break;
      case 'h':
        name = "xdigit";
        break;
      case 'p':
        return property(place);
      default:
        return std::nullopt;
    }
    pos_ += 2;
    const CodePointSet set = *named_set(name, place);
    return std::isupper(static_cast<unsigned char>(c)) != 0 ? set.complement() : set;
  }

  CodePointSet property(Where place) {
    const std::size_t close = in_.find('}', pos_);
    if (peek(2) != '{' || close == std::string_view::npos) unsupported("\\p without {}");
    const std::string_view whole = in_.substr(pos_, close + 1 - pos_);
    std::string_view name = whole.substr(3, whole.size() - 4);
    const bool has_caret = name.starts_with('^');
    if (has_caret) name.remove_prefix(1);
    const auto set = named_set(name, place);
    if (!set) unsupported(whole);
    pos_ = close + 1;
    return (whole[1] == 'P') != has_caret ? set->complement() : *set;
  }

  char32_t hex(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool is_surrogate = value >= 0xD800 && value < 0xE000;
    if (error != std::errc() || end != text.data() + text.size() || value >= num_code_points ||
        is_surrogate) {
      unsupported(rest(2));
    }
    return value;
  }

  /// An escape for one character; `\` and the next character are there.
  char32_t character_escape() {
    constexpr std::string_view names = "ntrfvae";
    constexpr std::u32string_view meanings = U"\n\t\r\f\v\a\x1B";
    const char c = peek(1);
    if (const std::size_t found = names.find(c); found != std::string_view::npos) {
      pos_ += 2;
      return meanings[found];
    }
    if (c == 'u') {
      if (in_.size() < pos_ + 6) unsupported("\\u");
      const char32_t value = hex(in_.substr(pos_ + 2, 4));
      pos_ += 6;
      return value;
    }
    if (c == 'x') return hex_escape();
    if (c == '0') return octal_escape();
    // Any other letter or digit is a back reference, or means something else there.
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) unsupported(rest(2));
    ++pos_;
    return take_character();
  }

  char32_t hex_escape() {
    if (peek(2) == '{') {
      const std::size_t close = in_.find('}', pos_);
      if (close == std::string_view::npos) unsupported("\\x{");
      const char32_t value = hex(in_.substr(pos_ + 3, close - pos_ - 3));
      return pos_ = close + 1, value;
    }
    std::size_t length = 0;
    while (length < 2 && std::isxdigit(static_cast<unsigned char>(peek(2 + length))) != 0) ++length;
    const char32_t value = hex(in_.substr(pos_ + 2, length));
    if (value >= 0x80) unsupported(rest(2 + length));  // there it is a byte, not a character
    return pos_ += 2 + length, value;
  }

  char32_t octal_escape() {
    pos_ += 2;
    char32_t value = 0;
    for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i)
      value = value * 8 + static_cast<char32_t>(in_[pos_++] - '0');
    return value;
  }

  // --- character classes

  CodePointSet top_class() {
    const bool is_negated = accept("^");
    CodePointSet set = class_members(0);
    if (group().ignores_case) {
      refuse_case_sequences(set, is_negated);
      set = with_case_variants(set);
    }
    return is_negated ? set.complement() : set;
  }

  // Without regard to case [ß] would match "ss", too.
  void refuse_case_sequences(const CodePointSet& set, bool is_negated) const {
    if (is_negated) return;
    const CodePointSet variants = with_case_variants(set);
    for (const CaseSequence& folding : case_sequences()) {
      const bool decides =
          set.contains(folding.character) && !variants.contains(folding.sequence[0]);
      if (decides) unsupported("(?i) of a letter that equals two others, such as \"ss\",");
    }
  }

  /// What stands between [ or [^ and ].
  CodePointSet class_members(int nesting) {
    if (nesting > max_nesting) unsupported("so deep a nesting");
    std::optional<CodePointSet> left_of_and;
    CodePointSet members;
    bool is_first = true;
    while (peek() != ']' || is_first) {
      if (at_end()) unsupported("a [ that is not closed");
      if (is_first && peek() == ']') unsupported("[]");
      is_first = false;
      if (accept("&&")) {
        left_of_and = left_of_and ? left_of_and->intersected(members) : members;
        members = CodePointSet();
        continue;
      }
      members = members.united(next_members(nesting));
    }
    ++pos_;
    return left_of_and ? left_of_and->intersected(members) : members;
  }

  CodePointSet next_members(int nesting) {
    if (rest(2) == "[:") {
      if (auto set = posix_bracket()) return *std::move(set);
    }
    if (accept("[")) {
      const bool is_negated = accept("^");
      const CodePointSet inner = class_members(nesting + 1);
      return is_negated ? inner.complement() : inner;
    }
    const Item low = class_item();
    if (!low.character) return low.set;
    if (peek() != '-' || peek(1) == ']') return CodePointSet(*low.character, *low.character);
    ++pos_;
    if (at_end() || peek() == '[' || rest(2) == "&&") unsupported("- in a class");
    const Item high = class_item();
    if (!high.character || *high.character < *low.character) unsupported("- in a class");
    return CodePointSet(*low.character, *high.character);
  }

  Item class_item() {
    if (peek() != '\\') return {take_character(), {}};
    if (rest(2).size() < 2) unsupported("\\");
    if (auto set = set_escape(Where::in_class)) return {std::nullopt, *std::move(set)};
    if (accept("\\b")) return {U'\b', {}};
    return {character_escape(), {}};
  }

  /// [:name:] or [:^name:]
  std::optional<CodePointSet> posix_bracket() {
    const std::size_t close = in_.find(":]", pos_);
    if (close == std::string_view::npos) unsupported("[:");
    std::string_view name = in_.substr(pos_ + 2, close - pos_ - 2);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    const auto set = posix_class(name);
    if (!set) unsupported(in_.substr(pos_, close + 2 - pos_));
    pos_ = close + 2;
    return is_negated ? set->complement() : *set;
  }

  std::string_view in_;
  const std::string& where_;
  std::size_t pos_ = 0;
  std::vector<Group> groups_ = {Group()};
  std::optional<char32_t> previous_literal_;  ///< under (?i), and nothing came after it
  Parsed out_;
};

std::string byte_class(const std::string& labels) {
  if (labels.empty()) return "(?!)";
  std::string out = "[";
  for (const char label : labels) out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(label));
  return out + "]";
}

/// Which of the sets hold a character, as text that a map can find.
using Membership = std::string;

}  // namespace

CharacterLabels::CharacterLabels(const std::vector<CodePointSet>& sets, const std::string& where)
    : of_set_(sets.size()) {
  // At each place some sets begin or end; between two places all characters are alike.
  std::map<char32_t, std::vector<std::size_t>> changes;
  changes[0];
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const auto& range : sets[i].ranges()) {
      changes[range.first].push_back(i);
      changes[range.last + 1].push_back(i);
    }
  }
  std::vector<std::uint8_t> flat(num_code_points);
  std::unordered_map<Membership, std::uint8_t> known;
  Membership membership(sets.size(), '\0');
  for (auto change = changes.begin(); change != changes.end() && change->first < num_code_points;
       ++change) {
    for (const std::size_t i : change->second) membership[i] = membership[i] == '\0' ? '\1' : '\0';
    if (!known.contains(membership)) {
      if (known.size() == 256)
        throw Error("{}: the regular expression tells more than 256 kinds of characters apart",
                    where);
      const auto label = static_cast<std::uint8_t>(known.size());
      known.emplace(membership, label);
      for (std::size_t i = 0; i < sets.size(); ++i) {
        if (membership[i] != '\0') of_set_[i] += static_cast<char>(label);
      }
    }
    const auto next = std::next(change);
    const char32_t end =
        next == changes.end() ? num_code_points : std::min(next->first, num_code_points);
    std::fill(flat.begin() + change->first, flat.begin() + end, known.at(membership));
  }
  std::map<Page, std::uint16_t> known_pages;
  for (std::size_t begin = 0; begin < flat.size(); begin += 256) {
    Page page;
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(begin), 256, page.begin());
    const auto [found, is_new] =
        known_pages.try_emplace(page, static_cast<std::uint16_t>(pages_.size()));
    if (is_new) pages_.push_back(page);
    page_of_.push_back(found->second);
  }
}

std::string CharacterLabels::label_text(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    out += static_cast<char>(label(decode_utf8(text)));
    text.remove_prefix(utf8_length(text[0]));
  }
  return out;
}

LabelExpression translate_regex(const std::string& expression, const std::string& where) {
  if (find_invalid_utf8(expression)) throw Error("{}: the regular expression is not UTF-8", where);
  const Parsed parsed = Parser(expression, where).run();
  LabelExpression out{"", CharacterLabels(parsed.sets, where)};
  for (const Part& part : parsed.parts) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      out.expression += *text;
    } else {
      out.expression += byte_class(out.labels.of_set(std::get<std::size_t>(part)));
    }
  }
  return out;
}

}  // namespace sluice::tokenizers
