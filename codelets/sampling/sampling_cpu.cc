#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codelets/kernels/simd.h"
#include "codelets/runtime/runtime.h"
#include "codelets/sampling/sampling.h"

namespace sluice {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Greedy: the largest logit after the penalties, the lowest id among equals.
std::int32_t best_token(std::span<const float> logits, const SamplingRow& row,
                        const SlotHistory& history) {
  if (history.seen == nullptr && history.output_counts == nullptr) {
    const std::int64_t found =
        simd::find_largest(logits.data(), static_cast<std::int64_t>(logits.size()));
    if (found >= 0) return static_cast<std::int32_t>(found);
  }
  std::int32_t best = -1;
  float best_logit = minus_infinity;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    float logit = logits[i];
    if (std::isnan(logit) || logit == -minus_infinity) {
      throw Error("the model computed {} for token {}; its weights or dtype are bad", logit, i);
    }
    logit = penalised_logit(logit, static_cast<std::int64_t>(i), row, history);
    if (best < 0 || logit > best_logit) {
      best = static_cast<std::int32_t>(i);
      best_logit = logit;
    }
  }
  if (best_logit == minus_infinity) {
    throw Error("the model gives no token a chance: all logits are -inf");
  }
  return best;
}

/// Softmax in place over what is not -infinity; returns the ids that are left, the likeliest first.
std::vector<std::int32_t> softmax_sorted(std::span<float> values) {
  std::vector<std::int32_t> ids;
  float maximum = minus_infinity;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == minus_infinity) continue;
    ids.push_back(static_cast<std::int32_t>(i));
    maximum = std::max(maximum, values[i]);
  }
  double total = 0;
  for (float& value : values) {
    value = value == minus_infinity ? 0.0F : std::exp(value - maximum);
    total += value;
  }
  for (float& value : values) value = static_cast<float>(value / total);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  return ids;
}

/// Keeps the k largest, and those equal to the k-th.
void apply_top_k(std::span<float> logits, std::int32_t k) {
  if (k <= 0 || static_cast<std::size_t>(k) >= logits.size()) return;
  std::vector<float> sorted(logits.begin(), logits.end());
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const float threshold = sorted[static_cast<std::size_t>(k - 1)];
  for (float& logit : logits) {
    if (logit < threshold) logit = minus_infinity;
  }
}

/// Zeroes what top-p and min-p drop and scales the rest to a sum of one.
void keep_likely(std::span<float> probabilities, const std::vector<std::int32_t>& sorted,
                 const SamplingRow& row) {
  std::size_t kept = sorted.size();
  if (row.top_p < 1.0F) {
    double before = 0;  // a token stays while what is likelier sums to less than top_p
    kept = 0;
    while (kept < sorted.size() && (kept == 0 || before < static_cast<double>(row.top_p))) {
      before += static_cast<double>(probabilities[static_cast<std::size_t>(sorted[kept++])]);
    }
  }
  if (row.min_p > 0.0F) {
    const float threshold = row.min_p * probabilities[static_cast<std::size_t>(sorted.front())];
    while (kept > 1 && probabilities[static_cast<std::size_t>(sorted[kept - 1])] < threshold)
      --kept;
  }
  double total = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    float& probability = probabilities[static_cast<std::size_t>(sorted[i])];
    if (i >= kept) probability = 0.0F;
    total += static_cast<double>(probability);
  }
  for (float& probability : probabilities) probability = static_cast<float>(probability / total);
}

std::int32_t draw(std::span<const float> logits, const SamplingRow& row,
                  std::span<const std::int32_t> suppressed, const SlotHistory& history) {
  if (!suppressed.empty()) {
    thread_local std::vector<float> allowed;
    allowed.assign(logits.begin(), logits.end());
    suppress(suppressed, allowed);
    return draw(allowed, row, {}, history);
  }
  if (row.temperature <= 0.0F) return best_token(logits, row, history);
  thread_local std::vector<float> probabilities;
  probabilities.resize(logits.size());
  token_probabilities(logits, row, history, probabilities);
  double left = uniform_draw(row);
  std::int32_t last = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0.0F) continue;
    last = static_cast<std::int32_t>(i);
    left -= static_cast<double>(probabilities[i]);
    if (left < 0) return last;
  }
  return last;  // rounding left a crumb
}

/// Brings what a slot remembers up to date with what this batch feeds; only what its sequence's
/// penalties need.
SlotHistory update_history(const SamplingOperands& operands, const BatchSequence& sequence) {
  const std::int64_t vocab = operands.args->vocab_size;
  std::uint32_t* seen = nullptr;
  std::int32_t* counts = nullptr;
  if (sequence.sampling.penalises_seen() && operands.seen != nullptr)
    seen = operands.seen + sequence.slot * seen_words(vocab);
  if (sequence.sampling.penalises_output() && operands.output_counts != nullptr)
    counts = operands.output_counts + sequence.slot * vocab;
  if (seen == nullptr && counts == nullptr) return {};
  const auto note = [&](std::int32_t token, std::int64_t position) {
    if (seen != nullptr) seen[token / 32] |= 1U << (token % 32);
    if (counts != nullptr && position >= sequence.prompt_tokens) ++counts[token];
  };
  if (sequence.fresh != 0) {
    if (seen != nullptr) std::fill(seen, seen + seen_words(vocab), 0U);
    if (counts != nullptr) std::fill(counts, counts + vocab, 0);
    std::int64_t position = 0;
    for (const std::int32_t token : operands.batch.history(sequence)) note(token, position++);
  }
  for (const BatchRow& row :
       operands.batch.rows().subspan(static_cast<std::size_t>(sequence.first_row),
                                     static_cast<std::size_t>(sequence.num_rows))) {
    note(row.token >= 0 ? row.token : operands.slot_tokens[-(row.token + 1)], row.position);
  }
  return {seen, counts};
}

}  // namespace

void suppress(std::span<const std::int32_t> suppressed, std::span<float> logits) {
  for (const std::int32_t token : suppressed) {
    if (static_cast<std::size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(token)];
    if (logit < std::numeric_limits<float>::infinity()) logit = minus_infinity;
  }
}

void token_probabilities(std::span<const float> logits, const SamplingRow& row,
                         const SlotHistory& history, std::span<float> probabilities) {
  const std::int32_t best = best_token(logits, row, history);
  if (row.temperature <= 0.0F) {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
    probabilities[static_cast<std::size_t>(best)] = 1.0F;
    return;
  }
  const auto logit_of = [&](std::size_t i) {
    return penalised_logit(logits[i], static_cast<std::int64_t>(i), row, history);
  };
  // Relative to the best, so that no temperature is small enough to overflow.
  const float highest = logit_of(static_cast<std::size_t>(best));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = (logit_of(i) - highest) / row.temperature;
  }
  apply_top_k(probabilities, row.top_k);
  const std::vector<std::int32_t> sorted = softmax_sorted(probabilities);
  keep_likely(probabilities, sorted, row);
}

void sampling_cpu(const CpuContext& cpu, const SamplingOperands& operands) {
  const std::int64_t vocab = operands.args->vocab_size;
  const auto sequences = operands.batch.sequences();
  cpu.pool.run(operands.batch.num_sequences(), [&](std::int64_t s) {
    const BatchSequence& sequence = sequences[static_cast<std::size_t>(s)];
    const SlotHistory history = update_history(operands, sequence);
    operands.tokens[s] = -1;
    if (sequence.logit_row < 0) return;
    const std::span logits(operands.logits + sequence.logit_row * vocab,
                           static_cast<std::size_t>(vocab));
    operands.tokens[s] =
        draw(logits, sequence.sampling, operands.batch.suppressed(sequence), history);
    operands.slot_tokens[sequence.slot] = operands.tokens[s];
  });
}

}  // namespace sluice
