#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/unicode.h"

namespace sluice::tokenizers {

/// One byte for each kind of character: two characters have the same label when every set of an
/// expression holds both or neither. Immutable.
class CharacterLabels {
 public:
  /// Throws Error, that begins with `where`, when the sets tell more than 256 kinds apart.
  CharacterLabels(const std::vector<CodePointSet>& sets, const std::string& where);

  std::uint8_t label(char32_t code_point) const {
    return pages_[page_of_[code_point >> 8]][code_point & 0xFF];
  }
  /// The labels of one of the sets.
  const std::string& of_set(std::size_t index) const { return of_set_[index]; }

  /// The labels of a text (well-formed UTF-8), one for each character.
  std::string label_text(std::string_view text) const;

 private:
  using Page = std::array<std::uint8_t, 256>;
  void fill(char32_t first, char32_t last, std::uint8_t label, std::vector<std::uint8_t>& flat);

  std::vector<std::uint16_t> page_of_;
  std::vector<Page> pages_;
  std::vector<std::string> of_set_;
};

/// A regular expression over labels, for an engine that knows bytes only. So no property of a
/// character is left to that engine, whose Unicode is another one.
struct LabelExpression {
  std::string expression;  ///< PCRE2's syntax, without UTF and UCP
  CharacterLabels labels;
};

/// Reads Oniguruma's syntax as Hugging Face uses it (Ruby's). What is not known here, or means
/// something else there, is refused. Throws Error that begins with `where`.
LabelExpression translate_regex(const std::string& expression, const std::string& where);

}  // namespace sluice::tokenizers
