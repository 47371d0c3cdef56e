#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/tokenizers/sentencepiece_model.h"
#include "models/tokenizers/sentencepiece_normalizer.h"

namespace sluice::tokenizers {

/// Cuts a normalized text into pieces, as the SentencePiece library does. Immutable; thread-safe. A
/// text of n bytes takes O(n log n), times the length of the longest piece.
class SentencePieceSegmenter {
 public:
  struct Segment {
    std::string_view text;  ///< a part of what was given
    std::int32_t id;
  };

  virtual ~SentencePieceSegmenter() = default;
  /// The segments of `text` (UTF-8) from left to right; together they are the text.
  virtual std::vector<Segment> segment(std::string_view text) const = 0;
};

/// The one for the model's kind. Both arguments must outlive it.
std::unique_ptr<SentencePieceSegmenter> make_segmenter(const SentencePieceModel& model,
                                                       const SentencePieceNormalizer& normalizer);

}  // namespace sluice::tokenizers
