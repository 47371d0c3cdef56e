#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizers/sentencepiece_segmenter.h"

namespace sluice::tokenizers {

/// Merges neighbours into the piece with the highest score until none is left; the leftmost of
/// equals first. User-defined pieces are not merged. A piece that is unused is cut again where it
/// was merged.
class SentencePieceBpe final : public SentencePieceSegmenter {
 public:
  SentencePieceBpe(const SentencePieceModel& model, const SentencePieceNormalizer& normalizer);

  std::vector<Segment> segment(std::string_view text) const override;

 private:
  class Merging;
  std::string_view next_word(std::string_view text) const;

  const SentencePieceModel& model_;
  const SentencePieceNormalizer& normalizer_;
  std::vector<std::uint32_t> ranks_;  ///< by id: the order of merges
  std::size_t longest_bytes_ = 0;
  bool words_are_apart_ = true;  ///< no piece reaches over the start of a word
};

}  // namespace sluice::tokenizers
