#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/byte_trie.h"
#include "models/tokenizers/sentencepiece_model.h"

namespace sluice::tokenizers {

/// The table of replacements in a NormalizerSpec: a trie in Darts-clone's format, whose values are
/// offsets into texts that end with a zero byte. Every access is checked.
class PrecompiledCharsmap {
 public:
  /// `where` begins every message. An empty `blob` replaces nothing.
  PrecompiledCharsmap(std::string_view blob, std::string where);

  struct Replacement {
    std::string_view text;
    std::size_t num_bytes;  ///< of what is replaced; 0: nothing
  };
  /// The longest entry at the start of `text`. Throws Error when the table is damaged there.
  Replacement longest(std::string_view text) const;

  /// Throws Error when what came of a text is not UTF-8: then the table is damaged.
  void check(std::string_view result) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string texts_;
  std::string where_;
};

/// Where a part of a text stands, which decides what happens to its start.
enum class TextPlace : std::uint8_t {
  start,       ///< dummy prefix, spaces removed
  unprefixed,  ///< spaces removed
  continued    ///< follows something: its first space stays
};

/// What SentencePiece does to a text before it is cut into pieces. Immutable; thread-safe.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  std::string normalize(std::string_view text, TextPlace place) const;

  /// Bytes of the longest user-defined piece at the start of `text`; 0: there is none.
  std::size_t user_defined(std::string_view text) const {
    return user_defined_.empty() ? 0 : user_defined_.longest(text);
  }

 private:
  /// What the start of `text` becomes, and how many bytes that start has.
  PrecompiledCharsmap::Replacement step(std::string_view text) const;
  std::size_t leading_spaces(std::string_view text) const;
  void append(std::string_view text, std::string& out) const;

  SentencePieceModel::Normalization spec_;
  bool prefix_is_suffix_;
  std::string_view space_;
  PrecompiledCharsmap charsmap_;
  ByteTrie user_defined_;
};

}  // namespace sluice::tokenizers
