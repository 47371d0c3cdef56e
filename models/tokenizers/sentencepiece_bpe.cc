#include "models/tokenizers/sentencepiece_bpe.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

using PieceType = SentencePieceModel::PieceType;
using Segment = SentencePieceSegmenter::Segment;

/// Whether a space follows something else within the piece.
bool has_inner_space(std::string_view piece) {
  while (piece.starts_with(space_mark)) piece.remove_prefix(space_mark.size());
  return piece.find(space_mark) != std::string_view::npos;
}

constexpr std::uint32_t no_merge = ~std::uint32_t{0};

struct Symbol {
  std::string_view text;  ///< empty: merged into the one before
  std::int32_t previous;  ///< index, or -1
  std::int32_t next;      ///< index, or -1
  bool is_frozen;
  std::uint32_t rank = no_merge;  ///< of the merge with the next one
};

/// 0 for the pieces with the highest score; equal scores have equal ranks.
std::vector<std::uint32_t> ranks_by_score(const SentencePieceModel& model) {
  std::vector<float> scores;
  for (const SentencePieceModel::Piece& piece : model.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  std::vector<std::uint32_t> ranks;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const auto place =
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<std::uint32_t>(place - scores.begin()));
  }
  return ranks;
}

}  // namespace

/// The merging of one text. Memory is kept from text to text.
class SentencePieceBpe::Merging {
 public:
  explicit Merging(const SentencePieceBpe& bpe) : bpe_(bpe), model_(bpe.model_) {}

  void run(std::string_view text, std::vector<Segment>& segments) {
    symbols_.clear();
    cuts_.clear();
    cut_into_characters(text);
    for (std::int32_t i = 1; i < static_cast<std::int32_t>(symbols_.size()); ++i)
      consider(i - 1, i);
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const std::uint64_t first = queue_.back();
      queue_.pop_back();
      merge(static_cast<std::uint32_t>(first >> 32), static_cast<std::int32_t>(first & 0xFFFFFFFF));
    }
    for (std::int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = at(i).next)
      append(at(i).text, segments);
  }

 private:
  Symbol& at(std::int32_t index) { return symbols_[static_cast<std::size_t>(index)]; }

  void cut_into_characters(std::string_view text) {
    while (!text.empty()) {
      const std::size_t whole = bpe_.normalizer_.user_defined(text);
      const std::size_t num_bytes = whole > 0 ? whole : utf8_length(text[0]);
      const auto index = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({text.substr(0, num_bytes), index - 1,
                          num_bytes == text.size() ? -1 : index + 1, whole > 0});
      text.remove_prefix(num_bytes);
    }
  }

  /// Notes what the two would become, and when.
  void consider(std::int32_t left, std::int32_t right) {
    if (left < 0) return;
    at(left).rank = no_merge;
    if (right < 0 || at(left).is_frozen || at(right).is_frozen) return;
    const std::string_view text = joined(left, right);
    if (text.size() > bpe_.longest_bytes_) return;
    const auto found = model_.matchable.find(text);
    if (found == model_.matchable.end()) return;
    const auto id = static_cast<std::size_t>(found->second);
    at(left).rank = bpe_.ranks_[id];
    queue_.push_back(std::uint64_t{bpe_.ranks_[id]} << 32 | static_cast<std::uint32_t>(left));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
    if (model_.pieces[id].type == PieceType::unused) cuts_[text] = at(left).text.size();
  }

  /// What was in the queue may be out of date: then the symbol has another rank.
  void merge(std::uint32_t rank, std::int32_t index) {
    Symbol& left = at(index);
    if (left.rank != rank) return;
    Symbol& right = at(left.next);
    left.text = joined(index, left.next);
    left.next = right.next;
    if (right.next >= 0) at(right.next).previous = index;
    right.text = {};
    right.rank = no_merge;
    consider(left.previous, index);
    consider(index, left.next);
  }

  /// Both lie side by side in the text.
  std::string_view joined(std::int32_t left, std::int32_t right) {
    return {at(left).text.data(), at(left).text.size() + at(right).text.size()};
  }

  void append(std::string_view text, std::vector<Segment>& segments) {
    stack_.push_back(text);
    while (!stack_.empty()) {
      const std::string_view part = stack_.back();
      stack_.pop_back();
      const std::int32_t id = model_.id_of(part);
      const bool is_unused = model_.pieces[static_cast<std::size_t>(id)].type == PieceType::unused;
      const auto cut = is_unused ? cuts_.find(part) : cuts_.end();
      if (cut == cuts_.end()) {
        segments.push_back({part, id});
      } else {
        stack_.push_back(part.substr(cut->second));
        stack_.push_back(part.substr(0, cut->second));
      }
    }
  }

  const SentencePieceBpe& bpe_;
  const SentencePieceModel& model_;
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> queue_;  ///< a heap of (rank, index of the left symbol), lowest first
  std::unordered_map<std::string_view, std::size_t>
      cuts_;  ///< unused piece: bytes of its left half
  std::vector<std::string_view> stack_;
};

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model,
                                   const SentencePieceNormalizer& normalizer)
    : model_(model), normalizer_(normalizer), ranks_(ranks_by_score(model)) {
  for (const auto& [text, id] : model.matchable) {
    longest_bytes_ = std::max(longest_bytes_, text.size());
    words_are_apart_ = words_are_apart_ && !has_inner_space(text) &&
                       model.pieces[static_cast<std::size_t>(id)].type != PieceType::unused;
  }
}

/// Up to the next space that follows something else; the whole text where pieces reach over.
std::string_view SentencePieceBpe::next_word(std::string_view text) const {
  if (!words_are_apart_) return text;
  std::size_t begin = 0;
  while (text.substr(begin).starts_with(space_mark)) begin += space_mark.size();
  return text.substr(0, text.find(space_mark, begin));
}

std::vector<SentencePieceSegmenter::Segment> SentencePieceBpe::segment(
    std::string_view text) const {
  std::vector<Segment> segments;
  Merging merging(*this);
  while (!text.empty()) {
    const std::string_view word = next_word(text);
    merging.run(word, segments);
    text.remove_prefix(word.size());
  }
  return segments;
}

}  // namespace sluice::tokenizers
