#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tokenizers {

/// A set of Unicode code points. Ranges are sorted, do not overlap and do not touch.
class CodePointSet {
 public:
  struct Range {
    char32_t first;
    char32_t last;  ///< belongs to the range
  };

  CodePointSet() = default;
  explicit CodePointSet(char32_t first, char32_t last) : ranges_{{first, last}} {}
  /// In any order; they may overlap.
  explicit CodePointSet(std::vector<Range> ranges);
  static CodePointSet all() { return CodePointSet(0, 0x10FFFF); }

  bool contains(char32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

  CodePointSet complement() const;
  CodePointSet united(const CodePointSet& other) const;
  CodePointSet intersected(const CodePointSet& other) const;

 private:
  std::vector<Range> ranges_;
};

/// What `\p{name}` holds to Hugging Face's regular expressions (Oniguruma's, Unicode 16), or
/// nothing for a name that is not known here. Known: the general categories and their groups,
/// scripts, POSIX classes, and binary properties such as Alphabetic or Emoji, in any case, with or
/// without spaces, `-` and `_`.
std::optional<CodePointSet> unicode_property(std::string_view name);

/// What `[[:name:]]` holds, or nothing. Two differ from `\p{name}`: `punct` has symbols, too, and
/// `word` lacks Latin-1's superscripts and fractions, as `\w` in a class does.
std::optional<CodePointSet> posix_class(std::string_view name);

/// Characters that an expression without regard to case takes for this one, itself among them.
std::vector<char32_t> case_variants(char32_t code_point);

/// The set with all case variants of its members.
CodePointSet with_case_variants(const CodePointSet& set);

/// Without regard to case some characters equal a sequence of others: U+00DF equals "ss".
struct CaseSequence {
  char32_t character;
  std::vector<char32_t> sequence;  ///< each one is the lowest of its case variants
};
const std::vector<CaseSequence>& case_sequences();

/// What Rust's regex crate takes for `\w`: added tokens with `single_word` and the pre-tokenizer
/// Whitespace use it.
bool is_word_character(char32_t code_point);

/// What the pre-tokenizers Punctuation and BertPreTokenizer cut off.
bool is_punctuation(char32_t code_point);

/// What the normalizers StripAccents and BertNormalizer ("strip_accents") remove.
bool is_accent(char32_t code_point);
bool is_accent_to_bert(char32_t code_point);

/// The normalizer Nmt: what it removes, and what it writes as a space.
bool is_removed_by_nmt(char32_t code_point);
bool is_space_to_nmt(char32_t code_point);

/// BertNormalizer's "clean_text": what it removes, and what it writes as a space.
bool is_removed_by_bert(char32_t code_point);
bool is_space_to_bert(char32_t code_point);
/// BertNormalizer's "handle_chinese_chars": what gets a space on both sides.
bool is_chinese_to_bert(char32_t code_point);

/// Appends the lower case of a character, as Rust's standard library has it.
void append_lower_case(char32_t code_point, std::string& out);

/// A name without spaces, '-' and '_', in lower case.
std::string loose_name(std::string_view name);

}  // namespace sluice::tokenizers
