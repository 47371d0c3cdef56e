#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perfmodels/task.h"

namespace sluice {

/// Most tokens whose logprobs are named beside the one that was drawn or given.
inline constexpr std::int32_t most_logprobs = 20;
/// Of a sequence that asks for none; 0: it asks for the drawn or given token's alone.
inline constexpr std::int32_t no_logprobs = -1;

/// How one sequence's next token is drawn. Fixed size: it travels inside the batch.
struct SamplingRow {
  float temperature = 0.0F;  ///< 0: greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;  ///< of tokens of prompt and output
  float presence_penalty = 0.0F;    ///< of each token of the output, once
  float frequency_penalty = 0.0F;   ///< and each time that it is there
  std::int32_t top_k = 0;           ///< 0: off
  std::uint32_t seed_low = 0;
  std::uint32_t seed_high = 0;
  std::int32_t step = 0;  ///< how many tokens of this sequence were drawn before

  constexpr bool penalises_seen() const { return repetition_penalty != 1.0F; }
  constexpr bool penalises_output() const {
    return presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
};

/// One sequence's part of a batch.
struct BatchSequence {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;    ///< new tokens
  std::int32_t context = 0;     ///< tokens whose KV is already cached
  std::int32_t slot = 0;        ///< place in the running batch
  std::int32_t fresh = 0;       ///< 1: the slot's sampling state starts anew
  std::int32_t logit_row = -1;  ///< row of the logits, -1: draws no token in this iteration
  std::int32_t first_page = 0;  ///< index into pages()
  std::int32_t num_pages = 0;
  std::int32_t first_suppressed = 0;  ///< index into suppressed()
  std::int32_t num_suppressed = 0;
  std::int32_t first_history = 0;  ///< index into history()
  std::int32_t num_history = 0;
  std::int32_t prompt_tokens = 0;       ///< tokens at this position and behind are the output's
  std::int32_t logprobs = no_logprobs;  ///< of its drawn token: likeliest ones besides
  std::int32_t prompt_logprobs = no_logprobs;  ///< the same of its scored rows
  SamplingRow sampling;
};

/// One row (token) of a batch.
struct BatchRow {
  std::int32_t token = 0;     ///< an id; below 0: the last token drawn for slot -(token + 1)
  std::int32_t position = 0;  ///< in its sequence
  std::int32_t sequence = 0;  ///< index into sequences()
};

/// The ragged batch of one sub-batch and iteration, as flat memory, so that it can be a StarPU
/// handle and travel to any device: header, sequences, rows, logit rows and scored rows (row
/// indices), scored tokens (ids), pages (indices into the slab), suppressed tokens (ids), history
/// (ids). Layout is little-endian 32-bit words.
class BatchView {
 public:
  constexpr explicit BatchView(const void* data) : words_(static_cast<const std::int32_t*>(data)) {}

  constexpr std::int64_t num_sequences() const { return words_[0]; }
  constexpr std::int64_t num_rows() const { return words_[1]; }
  constexpr std::int64_t num_logit_rows() const { return words_[2]; }
  constexpr std::int64_t num_pages() const { return words_[3]; }
  constexpr std::int64_t num_suppressed() const { return words_[4]; }
  constexpr std::int64_t num_history() const { return words_[5]; }
  constexpr std::int64_t num_scored_rows() const { return words_[6]; }

  constexpr std::span<const BatchSequence> sequences() const {
    return {at<BatchSequence>(header_words), static_cast<std::size_t>(num_sequences())};
  }
  constexpr std::span<const BatchRow> rows() const {
    return {at<BatchRow>(header_words + num_sequences() * sequence_words),
            static_cast<std::size_t>(num_rows())};
  }
  /// Row of the batch behind each row of the logits.
  constexpr std::span<const std::int32_t> logit_rows() const {
    return {words_ + header_words + num_sequences() * sequence_words + num_rows() * row_words,
            static_cast<std::size_t>(num_logit_rows())};
  }
  /// Rows of prompts whose logits give the next prompt token a logprob, and are not kept.
  constexpr std::span<const std::int32_t> scored_rows() const {
    return {logit_rows().data() + num_logit_rows(), static_cast<std::size_t>(num_scored_rows())};
  }
  /// The token behind each scored row.
  constexpr std::span<const std::int32_t> scored_tokens() const {
    return {scored_rows().data() + num_scored_rows(), static_cast<std::size_t>(num_scored_rows())};
  }
  /// What the LM head computes: logit rows, then scored rows.
  constexpr std::span<const std::int32_t> head_rows() const {
    return {logit_rows().data(), static_cast<std::size_t>(num_logit_rows() + num_scored_rows())};
  }
  constexpr std::span<const std::int32_t> pages() const {
    return {scored_tokens().data() + num_scored_rows(), static_cast<std::size_t>(num_pages())};
  }
  constexpr std::span<const std::int32_t> suppressed() const {
    return {pages().data() + num_pages(), static_cast<std::size_t>(num_suppressed())};
  }
  constexpr std::span<const std::int32_t> history() const {
    return {suppressed().data() + num_suppressed(), static_cast<std::size_t>(num_history())};
  }
  /// The whole block.
  constexpr std::span<const std::int32_t> words() const {
    return {words_, static_cast<std::size_t>(history().data() + num_history() - words_)};
  }
  /// The pages of one sequence, in order of position.
  constexpr std::span<const std::int32_t> pages(const BatchSequence& sequence) const {
    return pages().subspan(static_cast<std::size_t>(sequence.first_page),
                           static_cast<std::size_t>(sequence.num_pages));
  }
  /// Tokens that one sequence must not draw, ascending.
  constexpr std::span<const std::int32_t> suppressed(const BatchSequence& sequence) const {
    return suppressed().subspan(static_cast<std::size_t>(sequence.first_suppressed),
                                static_cast<std::size_t>(sequence.num_suppressed));
  }
  /// The cached tokens that a sequence's slot has yet to learn, from position 0 on.
  constexpr std::span<const std::int32_t> history(const BatchSequence& sequence) const {
    return history().subspan(static_cast<std::size_t>(sequence.first_history),
                             static_cast<std::size_t>(sequence.num_history));
  }

 private:
  friend class BatchBuilder;
  static constexpr std::int64_t header_words = 7;
  static constexpr std::int64_t sequence_words = sizeof(BatchSequence) / 4;
  static constexpr std::int64_t row_words = sizeof(BatchRow) / 4;

  template <typename T>
  constexpr const T* at(std::int64_t word) const {
    return static_cast<const T*>(static_cast<const void*>(words_ + word));
  }

  const std::int32_t* words_;
};

/// Puts a batch together, sequence by sequence.
class BatchBuilder {
 public:
  struct Sequence {
    std::int32_t slot = 0;
    std::int32_t context = 0;
    bool fresh = false;
    std::span<const std::int32_t> tokens;  ///< new tokens; below 0: see BatchRow::token
    std::span<const std::int32_t> pages;   ///< must cover context + tokens
    SamplingRow sampling;
    std::span<const std::int32_t> suppressed = {};  ///< tokens that it must not draw, ascending
    /// How many of its first tokens are the prompt; what follows is output. For its penalties.
    std::int32_t prompt_tokens = 0;
    /// All cached tokens, where a fresh one with a penalty has some: its slot has not seen them.
    std::span<const std::int32_t> history = {};
    /// Whether the drawn token's logprob is wanted, and those of how many likeliest ones.
    std::int32_t logprobs = no_logprobs;
    /// The same for the prompt's tokens behind each of these: `tokens` but for the first, which has
    /// no predecessor here, and `next_token`.
    std::int32_t prompt_logprobs = no_logprobs;
    std::int32_t next_token = -1;  ///< the prompt's behind `tokens`; -1: it ends with them
  };
  enum class LogitRows : std::uint8_t { none, last, all };
  /// Throws Error when the pages do not cover the tokens, when the penalties cannot know what is
  /// prompt and output, or when logprobs are wanted of tokens that nobody knows, or of too many.
  void add(const Sequence& sequence, LogitRows logits);

  /// All sequences of another one, behind those that are there.
  void append(const BatchBuilder& other);

  bool empty() const { return sequences_.empty(); }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t num_logit_rows() const { return static_cast<std::int64_t>(logit_rows_.size()); }
  std::int64_t num_scored_rows() const { return static_cast<std::int64_t>(scored_rows_.size()); }
  /// Rows that the LM head computes.
  std::int64_t num_head_rows() const { return num_logit_rows() + num_scored_rows(); }
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(sequences_.size()); }
  /// KV tokens that attention reads: context + new tokens, summed.
  std::int64_t context_tokens() const;
  /// Some sequence has tokens whose KV is already cached.
  bool has_cached_tokens() const { return context_tokens() > num_rows(); }
  /// Some sequence has a repetition penalty.
  bool has_repetition_penalty() const;
  /// Some sequence has a presence or a frequency penalty.
  bool has_output_penalty() const;
  /// Of drawn tokens, the most that a sequence asks for; no_logprobs: none does.
  std::int32_t wanted_logprobs() const;
  /// The same of the scored rows.
  std::int32_t wanted_prompt_logprobs() const;
  /// Scores of the split attention pair: sum of rows x (context + new tokens); times heads floats.
  std::int64_t num_score_columns() const;

  /// The flat form; read it with BatchView.
  std::vector<std::int32_t> build() const;

  /// Pages with cached tokens, each once; what they are in `batch` if they lie side by side in this
  /// order, and nothing is read or written elsewhere.
  struct CachedPages;
  CachedPages cached_pages() const;

 private:
  /// Its rows, and what is wanted of their logits, which `entry` learns.
  void add_rows(const Sequence& sequence, LogitRows logits, BatchSequence& entry);

  std::vector<BatchSequence> sequences_;
  std::vector<BatchRow> rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::int32_t> scored_rows_;
  std::vector<std::int32_t> scored_tokens_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int32_t> suppressed_;
  std::vector<std::int32_t> history_;
};

struct BatchBuilder::CachedPages {
  std::vector<std::int32_t> pages;
  BatchBuilder batch;
};

}  // namespace sluice
