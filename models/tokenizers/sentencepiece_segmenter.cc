#include "models/tokenizers/sentencepiece_segmenter.h"

#include "models/tokenizers/sentencepiece_bpe.h"
#include "models/tokenizers/sentencepiece_unigram.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

using Segment = SentencePieceSegmenter::Segment;

/// A word begins at each space.
class WordSegmenter final : public SentencePieceSegmenter {
 public:
  explicit WordSegmenter(const SentencePieceModel& model) : model_(model) {}

  std::vector<Segment> segment(std::string_view text) const override {
    std::vector<Segment> segments;
    while (!text.empty()) {
      const std::size_t first = text.starts_with(space_mark) ? space_mark.size() : 1;
      const std::string_view word = text.substr(0, text.find(space_mark, first));
      segments.push_back({word, model_.id_of(word)});
      text.remove_prefix(word.size());
    }
    return segments;
  }

 private:
  const SentencePieceModel& model_;
};

/// Characters, but for user-defined pieces.
class CharacterSegmenter final : public SentencePieceSegmenter {
 public:
  CharacterSegmenter(const SentencePieceModel& model, const SentencePieceNormalizer& normalizer)
      : model_(model), normalizer_(normalizer) {}

  std::vector<Segment> segment(std::string_view text) const override {
    std::vector<Segment> segments;
    while (!text.empty()) {
      const std::size_t whole = normalizer_.user_defined(text);
      const std::string_view piece = text.substr(0, whole > 0 ? whole : utf8_length(text[0]));
      segments.push_back({piece, model_.id_of(piece)});
      text.remove_prefix(piece.size());
    }
    return segments;
  }

 private:
  const SentencePieceModel& model_;
  const SentencePieceNormalizer& normalizer_;
};

}  // namespace

std::unique_ptr<SentencePieceSegmenter> make_segmenter(const SentencePieceModel& model,
                                                       const SentencePieceNormalizer& normalizer) {
  switch (model.kind) {
    case SentencePieceModel::Kind::unigram:
      return std::make_unique<SentencePieceUnigram>(model);
    case SentencePieceModel::Kind::bpe:
      return std::make_unique<SentencePieceBpe>(model, normalizer);
    case SentencePieceModel::Kind::word:
      return std::make_unique<WordSegmenter>(model);
    case SentencePieceModel::Kind::character:
      break;
  }
  return std::make_unique<CharacterSegmenter>(model, normalizer);
}

}  // namespace sluice::tokenizers
