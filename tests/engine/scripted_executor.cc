#include "tests/engine/scripted_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "schedulers/schedule.h"

namespace sluice::test {
namespace {

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xFF51AFD7ED558CCD;
  value ^= value >> 33;
  return value;
}

std::uint64_t seed_of(const BatchSequence& sequence) {
  return std::uint64_t{sequence.sampling.seed_high} << 32 | sequence.sampling.seed_low;
}

}  // namespace

std::int32_t scripted_token(std::uint64_t seed, std::int64_t step, std::int64_t vocab_size) {
  const std::uint64_t hash = mixed(seed * 0x9E3779B97F4A7C15 + static_cast<std::uint64_t>(step));
  return static_cast<std::int32_t>(hash % static_cast<std::uint64_t>(vocab_size));
}

ScriptedExecutor::ScriptedExecutor(std::vector<std::int64_t> pool_pages, std::int64_t vocab_size)
    : vocab_size_(vocab_size), holders_(pool_pages.size()) {
  for (const std::int64_t pages : pool_pages) pools_.emplace_back(static_cast<std::size_t>(pages));
}

void ScriptedExecutor::expect_sequence(std::uint64_t seed, std::vector<std::int32_t> prompt) {
  scripts_[seed].prompt = std::move(prompt);
}

template <typename... Arguments>
void ScriptedExecutor::complain(const char* text, const Arguments&... arguments) {
  if (!problem_.empty()) return;
  problem_ = fmt::format("iteration {}: ", num_iterations_) +
             fmt::format(fmt::runtime(text), arguments...);
}

std::int32_t ScriptedExecutor::token_at(std::uint64_t seed, const Script& script,
                                        std::int64_t position) const {
  const std::int64_t step = position - std::ssize(script.prompt);
  return step < 0 ? script.prompt[static_cast<std::size_t>(position)]
                  : scripted_token(seed, step, vocab_size_);
}

std::uint64_t ScriptedExecutor::kv_at(std::uint64_t seed, std::int64_t position) {
  Script& script = scripts_[seed];
  while (std::ssize(script.kv) <= position) {
    const std::int64_t at = std::ssize(script.kv);
    const std::uint64_t before = script.kv.empty() ? 17 : script.kv.back();
    // A drawn token's KV differs from a prompt's in its last bits.
    const std::uint64_t kind = at < std::ssize(script.prompt) ? 0 : 1;
    const auto token = static_cast<std::uint64_t>(token_at(seed, script, at));
    script.kv.push_back(mixed(before * 31 + token * 2 + kind + 1));
  }
  return script.kv[static_cast<std::size_t>(position)];
}

void ScriptedExecutor::submit(const std::vector<SubBatch>& sub_batches,
                              const std::vector<KvMove>& moves) {
  for (const KvMove& one : moves) move(one);
  for (auto& holders : holders_) holders.clear();
  seen_slots_.clear();
  std::vector<SubBatchResults>& results = under_way_.emplace_back();
  Rows rows_of;
  std::int64_t rows = 0;
  if (sub_batches.empty()) complain("it has no sub-batch");
  for (const SubBatch& sub_batch : sub_batches) {
    SubBatchResults& result = results.emplace_back();
    if (sub_batch.parts.empty()) complain("a sub-batch has no part");
    for (const BatchPart& part : sub_batch.parts) {
      const std::vector<std::int32_t> words = part.batch.build();
      const BatchView view(words.data());
      rows += view.num_rows();
      for (const BatchSequence& sequence : view.sequences()) {
        rows_of[seed_of(sequence)] += sequence.num_rows;
        result.tokens.push_back(compute(part.cohort, view, sequence));
      }
    }
  }
  now_s_ += 1e-3 + 1e-5 * static_cast<double>(rows);
  if (on_submit) on_submit(rows_of);
  ++num_iterations_;
}

std::vector<SubBatchResults> ScriptedExecutor::wait() {
  std::vector<SubBatchResults> results = std::move(under_way_.front());
  under_way_.pop_front();
  return results;
}

void ScriptedExecutor::move(const KvMove& move) {
  const std::set<std::int32_t> targets(move.to_pages.begin(), move.to_pages.end());
  if (move.from == move.to || move.from_pages.size() != move.to_pages.size() ||
      targets.size() != move.to_pages.size()) {
    complain("a move of {} pages of pool {} to {} of {}", move.from_pages.size(), move.from,
             targets.size(), move.to);
    return;
  }
  for (std::size_t i = 0; i < move.from_pages.size(); ++i) {
    pools_.at(move.to).at(static_cast<std::size_t>(move.to_pages[i])) =
        pools_.at(move.from).at(static_cast<std::size_t>(move.from_pages[i]));
  }
  num_moved_pages_ += std::ssize(move.to_pages);
}

std::int32_t ScriptedExecutor::compute(std::size_t cohort, const BatchView& view,
                                       const BatchSequence& sequence) {
  const std::uint64_t seed = seed_of(sequence);
  const auto found = scripts_.find(seed);
  if (found == scripts_.end()) {
    complain("sequence {} is unknown", seed);
    return 0;
  }
  const std::int64_t prompt = std::ssize(found->second.prompt);
  check_piece(seed, sequence, prompt);
  check_rows(seed, view, sequence);
  check_pages(seed, cohort, view, sequence, prompt);
  if (sequence.logit_row < 0) return -1;
  const std::int64_t step = sequence.context + sequence.num_rows - prompt;
  if (step != sequence.sampling.step)
    complain("sequence {} draws token {} as its {}th", seed, step, sequence.sampling.step);
  slots_[sequence.slot].next_step = step + 1;
  return scripted_token(seed, step, vocab_size_);
}

void ScriptedExecutor::check_piece(std::uint64_t seed, const BatchSequence& sequence,
                                   std::int64_t prompt) {
  const std::int64_t begin = sequence.context;
  const std::int64_t rows = sequence.num_rows;
  const std::int64_t end = begin + rows;
  bool is_allowed = rows >= 1 && rows < fewest_prompt_rows;  // of drawn tokens
  if (begin < prompt) {
    const bool is_whole = begin == 0 && end == prompt;
    const bool is_piece = rows >= fewest_prompt_rows && end <= prompt &&
                          (end == prompt || prompt - end >= fewest_prompt_rows);
    is_allowed = is_whole || is_piece;
  }
  if (!is_allowed)
    complain("sequence {} with a prompt of {} computes {} to {}", seed, prompt, begin, end);
}

void ScriptedExecutor::check_rows(std::uint64_t seed, const BatchView& view,
                                  const BatchSequence& sequence) {
  Slot& slot = slots_[sequence.slot];
  if (!seen_slots_.emplace(sequence.slot, seed).second)
    complain("slot {} is there twice", sequence.slot);
  if (sequence.fresh != 0) slot = {.seed = seed, .next_step = -1};
  if (slot.seed != seed) complain("sequence {} is in the slot of sequence {}", seed, slot.seed);
  const Script& script = scripts_.at(seed);
  for (std::int32_t i = 0; i < sequence.num_rows; ++i) {
    const BatchRow& row = view.rows()[static_cast<std::size_t>(sequence.first_row + i)];
    const std::int64_t position = sequence.context + i;
    if (row.position != position)
      complain("sequence {} has position {} for {}", seed, row.position, position);
    if (row.token >= 0) {
      if (row.token != token_at(seed, script, position))
        complain("sequence {} has token {} at {}", seed, row.token, position);
    } else if (row.token != -(sequence.slot + 1) ||
               slot.next_step != position + 1 - std::ssize(script.prompt)) {
      complain("sequence {} reads slot {} at {}", seed, -(row.token + 1), position);
    }
  }
}

void ScriptedExecutor::check_pages(std::uint64_t seed, std::size_t cohort, const BatchView& view,
                                   const BatchSequence& sequence, std::int64_t prompt) {
  std::vector<Page>& pool = pools_.at(cohort);
  const std::span<const std::int32_t> pages = view.pages(sequence);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::int64_t end = static_cast<std::int64_t>(i + 1) * page_tokens;
    const Holder mine{.seed = seed,
                      .only_reads = end <= std::min<std::int64_t>(prompt, sequence.context)};
    const auto [holder, is_first] = holders_.at(cohort).emplace(pages[i], mine);
    const bool is_shared = holder->second.only_reads && mine.only_reads;
    if (!is_first && !is_shared)
      complain("page {} of pool {} is of sequences {} and {}", pages[i], cohort, seed,
               holder->second.seed);
  }
  for (std::int64_t position = 0; position < sequence.context + sequence.num_rows; ++position) {
    std::uint64_t& kv = pool.at(static_cast<std::size_t>(
        pages[static_cast<std::size_t>(position / page_tokens)]))[position % page_tokens];
    if (position >= sequence.context) {
      kv = kv_at(seed, position);
    } else if (kv != kv_at(seed, position)) {
      complain("sequence {} finds other KV at {} of {}, page {} of pool {}", seed, position,
               sequence.context, pages[static_cast<std::size_t>(position / page_tokens)], cohort);
    }
  }
}

}  // namespace sluice::test
