#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenizers/byte_trie.h"
#include "models/tokenizers/sentencepiece_segmenter.h"

namespace sluice::tokenizers {

/// The segmentation with the highest sum of scores (Viterbi). Sums are rounded as the library
/// rounds them, so that near-ties fall alike.
class SentencePieceUnigram final : public SentencePieceSegmenter {
 public:
  explicit SentencePieceUnigram(const SentencePieceModel& model);

  std::vector<Segment> segment(std::string_view text) const override;

 private:
  /// The best way to an end of a piece.
  struct Way {
    std::int32_t id = -1;
    float score = 0;
    std::int64_t begin = -1;  ///< of its last piece; -1: no way yet
  };
  /// What a piece of this many bytes adds to the score.
  double score(std::int32_t id, std::size_t num_bytes) const;
  void extend_from(std::size_t begin, std::string_view text, std::vector<Way>& ways) const;

  const SentencePieceModel& model_;
  ByteTrie trie_;
  float max_score_;
  float unknown_score_;
};

}  // namespace sluice::tokenizers
