#include "models/tokenizers/sentencepiece_unigram.h"

#include <algorithm>
#include <limits>

#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

using PieceType = SentencePieceModel::PieceType;

// The library's constants.
constexpr float unknown_penalty = 10;
constexpr double user_defined_penalty = 0.1;

}  // namespace

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceModel& model)
    : model_(model), max_score_(std::numeric_limits<float>::min()) {
  float min_score = std::numeric_limits<float>::max();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (piece.type == PieceType::normal) {
      min_score = std::min(min_score, piece.score);
      max_score_ = std::max(max_score_, piece.score);
    }
    // An unused piece is as good as none.
    if (piece.type == PieceType::normal || piece.type == PieceType::user_defined)
      trie_.insert(piece.text, static_cast<std::int32_t>(id));
  }
  unknown_score_ = min_score - unknown_penalty;
}

double SentencePieceUnigram::score(std::int32_t id, std::size_t num_bytes) const {
  const SentencePieceModel::Piece& piece = model_.pieces[static_cast<std::size_t>(id)];
  if (piece.type != PieceType::user_defined) return piece.score;
  return static_cast<float>(num_bytes) * max_score_ - user_defined_penalty;
}

void SentencePieceUnigram::extend_from(std::size_t begin, std::string_view text,
                                       std::vector<Way>& ways) const {
  const float till_here = ways[begin].score;
  const auto offer = [&](std::size_t end, std::int32_t id, double score) {
    Way& way = ways[end];
    if (way.begin >= 0 && !(score > way.score)) return;
    way = {id, static_cast<float>(score), static_cast<std::int64_t>(begin)};
  };
  const std::size_t after_character = begin + utf8_length(text[begin]);
  bool is_known = false;
  std::int32_t node = ByteTrie::root;
  for (std::size_t end = begin; end < text.size();) {
    node = trie_.child(node, text[end]);
    if (node == ByteTrie::none) break;
    ++end;
    const std::int32_t id = trie_.value(node);
    if (id == ByteTrie::none) continue;
    offer(end, id, score(id, end - begin) + till_here);
    is_known = is_known || end == after_character;
  }
  if (!is_known) offer(after_character, model_.unknown_id, unknown_score_ + till_here);
}

std::vector<SentencePieceSegmenter::Segment> SentencePieceUnigram::segment(
    std::string_view text) const {
  std::vector<Way> ways(text.size() + 1);
  for (std::size_t begin = 0; begin < text.size(); begin += utf8_length(text[begin]))
    extend_from(begin, text, ways);
  std::vector<Segment> segments;
  for (std::size_t end = text.size(); end > 0;) {
    const Way& way = ways[end];
    const auto begin = static_cast<std::size_t>(way.begin);
    segments.push_back({text.substr(begin, end - begin), way.id});
    end = begin;
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

}  // namespace sluice::tokenizers
