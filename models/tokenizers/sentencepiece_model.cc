#include "models/tokenizers/sentencepiece_model.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizer.h"
#include "models/tokenizers/protobuf.h"

namespace sluice::tokenizers {
namespace {

using Kind = SentencePieceModel::Kind;
using Piece = SentencePieceModel::Piece;
using PieceType = SentencePieceModel::PieceType;

// Field numbers of sentencepiece_model.proto.
namespace model_field {
constexpr std::uint32_t pieces = 1;
constexpr std::uint32_t trainer_spec = 2;
constexpr std::uint32_t normalizer_spec = 3;
constexpr std::uint32_t denormalizer_spec = 5;
}  // namespace model_field
namespace piece_field {
constexpr std::uint32_t piece = 1;
constexpr std::uint32_t score = 2;
constexpr std::uint32_t type = 3;
}  // namespace piece_field
namespace trainer_field {
constexpr std::uint32_t model_type = 3;
constexpr std::uint32_t treat_whitespace_as_suffix = 24;
constexpr std::uint32_t byte_fallback = 35;
constexpr std::uint32_t bos_piece = 46;
constexpr std::uint32_t eos_piece = 47;
}  // namespace trainer_field
namespace normalizer_field {
constexpr std::uint32_t precompiled_charsmap = 2;
constexpr std::uint32_t add_dummy_prefix = 3;
constexpr std::uint32_t remove_extra_whitespaces = 4;
constexpr std::uint32_t escape_whitespaces = 5;
}  // namespace normalizer_field

Piece parse_piece(std::string_view message, const std::string& where) {
  Piece piece;
  ProtobufReader reader(message, where);
  while (reader.next()) {
    if (reader.field() == piece_field::piece) {
      piece.text = reader.bytes();
    } else if (reader.field() == piece_field::score) {
      piece.score = reader.single();
    } else if (reader.field() == piece_field::type) {
      const std::uint64_t type = reader.integer();
      if (type < 1 || type > 6)
        throw Error("{}: the type {} is unknown, expected 1 to 6", where, type);
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty()) throw Error("{}: the piece is empty", where);
  if (const auto bad = find_invalid_utf8(piece.text))
    throw Error("{}: the piece {} is not UTF-8 at byte {}", where, quote(piece.text), *bad);
  if (!std::isfinite(piece.score)) {
    throw Error("{}: the score of {} is {}, expected a finite number", where, quote(piece.text),
                piece.score);
  }
  return piece;
}

void parse_trainer(std::string_view message, SentencePieceModel& model) {
  const std::string where = model.path + ": trainer_spec";
  ProtobufReader reader(message, where);
  while (reader.next()) {
    switch (reader.field()) {
      case trainer_field::model_type: {
        const std::uint64_t type = reader.integer();
        if (type < 1 || type > 4) {
          throw Error("{}.model_type is {}, expected 1 to 4 (unigram, BPE, word, char)", where,
                      type);
        }
        model.kind = static_cast<Kind>(type);
        break;
      }
      case trainer_field::treat_whitespace_as_suffix:
        model.treat_whitespace_as_suffix = reader.boolean();
        break;
      case trainer_field::byte_fallback:
        model.byte_fallback = reader.boolean();
        break;
      case trainer_field::bos_piece:
        model.bos_piece = reader.bytes();
        break;
      case trainer_field::eos_piece:
        model.eos_piece = reader.bytes();
        break;
      default:  // about training only
        break;
    }
  }
}

void parse_normalizer(std::string_view message, const std::string& where,
                      SentencePieceModel::Normalization& spec) {
  ProtobufReader reader(message, where);
  while (reader.next()) {
    switch (reader.field()) {
      case normalizer_field::precompiled_charsmap:
        spec.precompiled_charsmap = reader.bytes();
        break;
      case normalizer_field::add_dummy_prefix:
        spec.add_dummy_prefix = reader.boolean();
        break;
      case normalizer_field::remove_extra_whitespaces:
        spec.remove_extra_whitespaces = reader.boolean();
        break;
      case normalizer_field::escape_whitespaces:
        spec.escape_whitespaces = reader.boolean();
        break;
      default:
        break;
    }
  }
}

void parse_message(std::string_view bytes, SentencePieceModel& model) {
  SentencePieceModel::Normalization denormalization;
  ProtobufReader reader(bytes, model.path);
  while (reader.next()) {
    switch (reader.field()) {
      case model_field::pieces:
        if (model.pieces.size() > static_cast<std::size_t>(max_token_id))
          throw Error("{}: more than {} pieces", model.path, max_token_id + 1);
        model.pieces.push_back(parse_piece(
            reader.bytes(), fmt::format("{}: piece {}", model.path, model.pieces.size())));
        break;
      case model_field::trainer_spec:
        parse_trainer(reader.bytes(), model);
        break;
      case model_field::normalizer_spec:
        parse_normalizer(reader.bytes(), model.path + ": normalizer_spec", model.normalization);
        break;
      case model_field::denormalizer_spec:
        parse_normalizer(reader.bytes(), model.path + ": denormalizer_spec", denormalization);
        break;
      default:
        break;
    }
  }
  if (!denormalization.precompiled_charsmap.empty())
    throw Error("{}: a denormalizer_spec with rules is not supported", model.path);
}

/// "<0x4A>" is 74.
std::optional<std::uint8_t> byte_of(std::string_view piece) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const std::size_t high = digits.find(piece[3]);
  const std::size_t low = digits.find(piece[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<std::uint8_t>(16 * high + low);
}

void add_byte(std::int32_t id, const std::string& where, SentencePieceModel& model) {
  const std::string& text = model.pieces[static_cast<std::size_t>(id)].text;
  if (!model.byte_fallback)
    throw Error("{}: {} is a byte, but trainer_spec.byte_fallback is false", where, quote(text));
  const auto byte = byte_of(text);
  if (!byte) throw Error("{}: {} is no byte, expected <0x00> to <0xFF>", where, quote(text));
  model.byte_ids[*byte] = id;
}

void index_pieces(SentencePieceModel& model) {
  model.byte_ids.fill(-1);
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(model.pieces.size()); ++id) {
    const Piece& piece = model.pieces[static_cast<std::size_t>(id)];
    const std::string where = fmt::format("{}: piece {}", model.path, id);
    Vocab& vocab = model.is_matchable(id) ? model.matchable : model.reserved;
    const auto [first, is_new] = vocab.try_emplace(piece.text, id);
    if (!is_new) throw Error("{}: {} is piece {} already", where, quote(piece.text), first->second);
    if (piece.type == PieceType::byte) add_byte(id, where, model);
    if (piece.type != PieceType::unknown) continue;
    if (model.unknown_id >= 0)
      throw Error("{}: a second unknown piece, piece {} is one", where, model.unknown_id);
    model.unknown_id = id;
  }
  if (model.unknown_id < 0) throw Error("{}: none of the pieces is of type unknown", model.path);
  for (std::size_t byte = 0; model.byte_fallback && byte < 256; ++byte) {
    if (model.byte_ids[byte] < 0) {
      throw Error("{}: trainer_spec.byte_fallback is true, but the piece <0x{:02X}> is missing",
                  model.path, byte);
    }
  }
}

}  // namespace

std::int32_t SentencePieceModel::id_of(std::string_view text) const {
  if (const auto found = reserved.find(text); found != reserved.end()) return found->second;
  const auto found = matchable.find(text);
  return found == matchable.end() ? unknown_id : found->second;
}

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& path) {
  SentencePieceModel model;
  model.path = path;
  parse_message(bytes, model);
  if (model.pieces.empty())
    throw Error("{}: not a SentencePiece model: there are no pieces in it", path);
  index_pieces(model);
  return model;
}

}  // namespace sluice::tokenizers
