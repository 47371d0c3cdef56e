#include "codelets/runtime/batch.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"

namespace sluice {
namespace {

/// What a fresh sequence's slot has to learn for its penalties. Throws Error when that, or where
/// the output begins, is not said.
std::span<const std::int32_t> history_of(const BatchBuilder::Sequence& sequence) {
  const SamplingRow& sampling = sequence.sampling;
  if (sampling.penalises_output() && sequence.prompt_tokens <= 0) {
    throw Error("a presence or frequency penalty counts output, and the prompt has {} tokens",
                sequence.prompt_tokens);
  }
  if (!sequence.fresh || (!sampling.penalises_seen() && !sampling.penalises_output())) return {};
  const std::span<const std::int32_t> history = sequence.history;
  if (std::ssize(history) != sequence.context) {
    throw Error("a fresh sequence with a penalty has {} cached tokens, and names {}",
                sequence.context, history.size());
  }
  const auto unknown = std::find_if(history.begin(), history.end(), [](int id) { return id < 0; });
  if (unknown != history.end()) throw Error("a cached token has the id {}", *unknown);
  return history;
}

/// Throws Error when the logprobs that a sequence wants are no such thing.
void check_logprobs(const BatchBuilder::Sequence& sequence) {
  for (const std::int32_t count : {sequence.logprobs, sequence.prompt_logprobs}) {
    if (count < no_logprobs || count > most_logprobs)
      throw Error("logprobs of {} tokens are wanted; at most {} can be had", count, most_logprobs);
  }
  if (sequence.prompt_logprobs == no_logprobs) return;
  const auto& tokens = sequence.tokens;
  if (std::any_of(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; }))
    throw Error("prompt logprobs are wanted of a token that is drawn");
}

}  // namespace

void BatchBuilder::add(const Sequence& sequence, LogitRows logits) {
  const auto num_tokens = static_cast<std::int32_t>(sequence.tokens.size());
  const auto num_pages = static_cast<std::int32_t>(sequence.pages.size());
  if (std::int64_t{num_pages} * page_tokens < std::int64_t{sequence.context} + num_tokens) {
    throw Error("{} pages of {} tokens cannot hold {} cached and {} new tokens", num_pages,
                page_tokens, sequence.context, num_tokens);
  }
  const std::span<const std::int32_t> history = history_of(sequence);
  check_logprobs(sequence);
  BatchSequence entry{.first_row = static_cast<std::int32_t>(rows_.size()),
                      .num_rows = num_tokens,
                      .context = sequence.context,
                      .slot = sequence.slot,
                      .fresh = sequence.fresh ? 1 : 0,
                      .first_page = static_cast<std::int32_t>(pages_.size()),
                      .num_pages = num_pages,
                      .first_suppressed = static_cast<std::int32_t>(suppressed_.size()),
                      .num_suppressed = static_cast<std::int32_t>(sequence.suppressed.size()),
                      .first_history = static_cast<std::int32_t>(history_.size()),
                      .num_history = static_cast<std::int32_t>(history.size()),
                      .prompt_tokens = sequence.prompt_tokens,
                      .sampling = sequence.sampling};
  add_rows(sequence, logits, entry);
  pages_.insert(pages_.end(), sequence.pages.begin(), sequence.pages.end());
  suppressed_.insert(suppressed_.end(), sequence.suppressed.begin(), sequence.suppressed.end());
  history_.insert(history_.end(), history.begin(), history.end());
  sequences_.push_back(entry);
}

void BatchBuilder::add_rows(const Sequence& sequence, LogitRows logits, BatchSequence& entry) {
  const auto index = static_cast<std::int32_t>(sequences_.size());
  for (std::int32_t i = 0; i < entry.num_rows; ++i) {
    const bool wanted =
        logits == LogitRows::all || (logits == LogitRows::last && i == entry.num_rows - 1);
    if (wanted) {
      entry.logit_row = static_cast<std::int32_t>(logit_rows_.size());
      entry.logprobs = sequence.logprobs;
      logit_rows_.push_back(static_cast<std::int32_t>(rows_.size()));
    }
    const std::int32_t next = i + 1 < entry.num_rows
                                  ? sequence.tokens[static_cast<std::size_t>(i) + 1]
                                  : sequence.next_token;
    if (sequence.prompt_logprobs != no_logprobs && next >= 0) {
      scored_rows_.push_back(static_cast<std::int32_t>(rows_.size()));
      scored_tokens_.push_back(next);
      entry.prompt_logprobs = sequence.prompt_logprobs;
    }
    rows_.push_back({.token = sequence.tokens[static_cast<std::size_t>(i)],
                     .position = sequence.context + i,
                     .sequence = index});
  }
}

void BatchBuilder::append(const BatchBuilder& other) {
  const auto first_sequence = static_cast<std::int32_t>(sequences_.size());
  const auto first_row = static_cast<std::int32_t>(rows_.size());
  const auto first_logit_row = static_cast<std::int32_t>(logit_rows_.size());
  const auto first_page = static_cast<std::int32_t>(pages_.size());
  const auto first_suppressed = static_cast<std::int32_t>(suppressed_.size());
  const auto first_history = static_cast<std::int32_t>(history_.size());
  for (BatchSequence sequence : other.sequences_) {
    sequence.first_row += first_row;
    if (sequence.logit_row >= 0) sequence.logit_row += first_logit_row;
    sequence.first_page += first_page;
    sequence.first_suppressed += first_suppressed;
    sequence.first_history += first_history;
    sequences_.push_back(sequence);
  }
  for (BatchRow row : other.rows_) {
    row.sequence += first_sequence;
    rows_.push_back(row);
  }
  for (const std::int32_t row : other.logit_rows_) logit_rows_.push_back(first_row + row);
  for (const std::int32_t row : other.scored_rows_) scored_rows_.push_back(first_row + row);
  scored_tokens_.insert(scored_tokens_.end(), other.scored_tokens_.begin(),
                        other.scored_tokens_.end());
  pages_.insert(pages_.end(), other.pages_.begin(), other.pages_.end());
  suppressed_.insert(suppressed_.end(), other.suppressed_.begin(), other.suppressed_.end());
  history_.insert(history_.end(), other.history_.begin(), other.history_.end());
}

std::int64_t BatchBuilder::context_tokens() const {
  std::int64_t tokens = 0;
  for (const BatchSequence& sequence : sequences_) {
    tokens += std::int64_t{sequence.context} + sequence.num_rows;
  }
  return tokens;
}

BatchBuilder::CachedPages BatchBuilder::cached_pages() const {
  CachedPages cached{.pages = {}, .batch = *this};
  std::vector<std::int32_t>& pages = cached.batch.pages_;
  std::fill(pages.begin(), pages.end(), 0);
  std::unordered_map<std::int32_t, std::int32_t> places;
  for (const BatchSequence& sequence : sequences_) {
    const std::int64_t count = (sequence.context + page_tokens - 1) / page_tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(sequence.first_page + i);
      const auto [place, is_new] =
          places.emplace(pages_[at], static_cast<std::int32_t>(cached.pages.size()));
      if (is_new) cached.pages.push_back(pages_[at]);
      pages[at] = place->second;
    }
  }
  return cached;
}

bool BatchBuilder::has_repetition_penalty() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const BatchSequence& sequence) {
    return sequence.sampling.penalises_seen();
  });
}

bool BatchBuilder::has_output_penalty() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const BatchSequence& sequence) {
    return sequence.sampling.penalises_output();
  });
}

std::int32_t BatchBuilder::wanted_logprobs() const {
  std::int32_t most = no_logprobs;
  for (const BatchSequence& sequence : sequences_) most = std::max(most, sequence.logprobs);
  return most;
}

std::int32_t BatchBuilder::wanted_prompt_logprobs() const {
  std::int32_t most = no_logprobs;
  for (const BatchSequence& sequence : sequences_) most = std::max(most, sequence.prompt_logprobs);
  return most;
}

std::int64_t BatchBuilder::num_score_columns() const {
  std::int64_t columns = 0;
  for (const BatchSequence& sequence : sequences_) {
    columns +=
        std::int64_t{sequence.num_rows} * (std::int64_t{sequence.context} + sequence.num_rows);
  }
  return columns;
}

std::vector<std::int32_t> BatchBuilder::build() const {
  std::vector<std::int32_t> words = {
      static_cast<std::int32_t>(sequences_.size()),  static_cast<std::int32_t>(rows_.size()),
      static_cast<std::int32_t>(logit_rows_.size()), static_cast<std::int32_t>(pages_.size()),
      static_cast<std::int32_t>(suppressed_.size()), static_cast<std::int32_t>(history_.size()),
      static_cast<std::int32_t>(scored_rows_.size())};
  const auto append = [&words](const auto& items) {
    const std::size_t begin = words.size();
    const std::size_t size_bytes = items.size() * sizeof(items[0]);
    words.resize(begin + size_bytes / sizeof(std::int32_t));
    if (size_bytes != 0) std::memcpy(words.data() + begin, items.data(), size_bytes);
  };
  append(sequences_);
  append(rows_);
  append(logit_rows_);
  append(scored_rows_);
  append(scored_tokens_);
  append(pages_);
  append(suppressed_);
  append(history_);
  return words;
}

}  // namespace sluice
