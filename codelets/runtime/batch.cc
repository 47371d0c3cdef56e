#include "codelets/runtime/batch.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace sluice {

void BatchBuilder::add(const Sequence& sequence, LogitRows logits) {
  const auto num_tokens = static_cast<std::int32_t>(sequence.tokens.size());
  const auto num_pages = static_cast<std::int32_t>(sequence.pages.size());
  if (std::int64_t{num_pages} * page_tokens < std::int64_t{sequence.context} + num_tokens) {
    throw Error("{} pages of {} tokens cannot hold {} cached and {} new tokens", num_pages,
                page_tokens, sequence.context, num_tokens);
  }
  BatchSequence entry{.first_row = static_cast<std::int32_t>(rows_.size()),
                      .num_rows = num_tokens,
                      .context = sequence.context,
                      .slot = sequence.slot,
                      .fresh = sequence.fresh ? 1 : 0,
                      .first_page = static_cast<std::int32_t>(pages_.size()),
                      .num_pages = num_pages,
                      .first_suppressed = static_cast<std::int32_t>(suppressed_.size()),
                      .num_suppressed = static_cast<std::int32_t>(sequence.suppressed.size()),
                      .sampling = sequence.sampling};
  const auto index = static_cast<std::int32_t>(sequences_.size());
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    const bool wanted =
        logits == LogitRows::all || (logits == LogitRows::last && i == num_tokens - 1);
    if (wanted) {
      entry.logit_row = static_cast<std::int32_t>(logit_rows_.size());
      logit_rows_.push_back(static_cast<std::int32_t>(rows_.size()));
    }
    rows_.push_back({.token = sequence.tokens[static_cast<std::size_t>(i)],
                     .position = sequence.context + i,
                     .sequence = index});
  }
  pages_.insert(pages_.end(), sequence.pages.begin(), sequence.pages.end());
  suppressed_.insert(suppressed_.end(), sequence.suppressed.begin(), sequence.suppressed.end());
  sequences_.push_back(entry);
}

void BatchBuilder::append(const BatchBuilder& other) {
  const auto first_sequence = static_cast<std::int32_t>(sequences_.size());
  const auto first_row = static_cast<std::int32_t>(rows_.size());
  const auto first_logit_row = static_cast<std::int32_t>(logit_rows_.size());
  const auto first_page = static_cast<std::int32_t>(pages_.size());
  const auto first_suppressed = static_cast<std::int32_t>(suppressed_.size());
  for (BatchSequence sequence : other.sequences_) {
    sequence.first_row += first_row;
    if (sequence.logit_row >= 0) sequence.logit_row += first_logit_row;
    sequence.first_page += first_page;
    sequence.first_suppressed += first_suppressed;
    sequences_.push_back(sequence);
  }
  for (BatchRow row : other.rows_) {
    row.sequence += first_sequence;
    rows_.push_back(row);
  }
  for (const std::int32_t row : other.logit_rows_) logit_rows_.push_back(first_row + row);
  pages_.insert(pages_.end(), other.pages_.begin(), other.pages_.end());
  suppressed_.insert(suppressed_.end(), other.suppressed_.begin(), other.suppressed_.end());
}

std::int64_t BatchBuilder::context_tokens() const {
  std::int64_t tokens = 0;
  for (const BatchSequence& sequence : sequences_) {
    tokens += std::int64_t{sequence.context} + sequence.num_rows;
  }
  return tokens;
}

bool BatchBuilder::has_repetition_penalty() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const BatchSequence& sequence) {
    return sequence.sampling.repetition_penalty != 1.0F;
  });
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
      static_cast<std::int32_t>(sequences_.size()), static_cast<std::int32_t>(rows_.size()),
      static_cast<std::int32_t>(logit_rows_.size()), static_cast<std::int32_t>(pages_.size()),
      static_cast<std::int32_t>(suppressed_.size())};
  const auto append = [&words](const auto& items) {
    const std::size_t begin = words.size();
    const std::size_t size_bytes = items.size() * sizeof(items[0]);
    words.resize(begin + size_bytes / sizeof(std::int32_t));
    if (size_bytes != 0) std::memcpy(words.data() + begin, items.data(), size_bytes);
  };
  append(sequences_);
  append(rows_);
  append(logit_rows_);
  append(pages_);
  append(suppressed_);
  return words;
}

}  // namespace sluice
