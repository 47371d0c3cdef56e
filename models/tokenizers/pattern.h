#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tokenizers {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin;
  std::size_t end;
  bool empty() const { return begin == end; }
  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

/// What a tokenizer.json searches for: a literal text or a regular expression. Immutable;
/// thread-safe.
class Pattern {
 public:
  static Pattern literal(std::string text);
  /// `expression` is in Oniguruma's syntax, which Hugging Face uses; it runs on PCRE2 over labels
  /// of characters (see regex.h), so that classes and case are Oniguruma's. What is not known is
  /// refused. Throws Error that begins with `where`.
  static Pattern regex(const std::string& expression, const std::string& where);

  /// All matches from left to right, not overlapping (an empty match directly after a match does
  /// not count). `text` must be well-formed UTF-8. Throws Error when an expression backtracks
  /// without end.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  Pattern() = default;
  std::vector<Span> find_all_literal(std::string_view text) const;

  struct Compiled;
  std::string literal_;
  std::shared_ptr<const Compiled> compiled_;  ///< null for a literal
};

}  // namespace sluice::tokenizers
