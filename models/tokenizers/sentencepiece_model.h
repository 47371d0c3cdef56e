#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/bpe.h"

namespace sluice::tokenizers {

/// U+2581, which stands for a space in pieces.
constexpr std::string_view space_mark = "\xE2\x96\x81";

/// What a tokenizer.model says, as far as it bears on ids and text: sentencepiece_model.proto's
/// ModelProto, checked.
struct SentencePieceModel {
  // The numbers are those of the file.
  enum class Kind : std::uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class PieceType : std::uint8_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
  };

  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::normal;
  };

  /// NormalizerSpec.
  struct Normalization {
    std::string precompiled_charsmap;
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
  };

  /// In text: `matchable` ones are normal, user-defined and unused; the others are reserved.
  bool is_matchable(std::int32_t id) const {
    const PieceType type = pieces[static_cast<std::size_t>(id)].type;
    return type == PieceType::normal || type == PieceType::user_defined ||
           type == PieceType::unused;
  }
  /// As the library's PieceToId: reserved pieces first, then the others, else the unknown one.
  std::int32_t id_of(std::string_view text) const;

  std::string path;  ///< of the file, for messages
  std::vector<Piece> pieces;
  Normalization normalization;
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";

  // Derived.
  Vocab matchable;
  Vocab reserved;
  std::int32_t unknown_id = -1;
  std::array<std::int32_t, 256> byte_ids{};  ///< with byte_fallback
};

/// Reads a tokenizer.model. Throws Error, one line with `path`, the piece's number or the field,
/// for a damaged file: no protobuf, an empty or doubled piece, a score that is no number, not one
/// unknown piece, an unknown type, bytes that are missing.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& path);

}  // namespace sluice::tokenizers
