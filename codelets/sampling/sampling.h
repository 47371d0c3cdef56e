#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the sampling codelet.
struct SamplingArgs {
  TaskTag tag;
  std::int64_t vocab_size = 0;
  bool has_logits = true;     ///< false: only prompts' parts, which draw no token yet
  bool track_seen = false;    ///< some sequence has a repetition penalty
  bool count_output = false;  ///< some sequence has a presence or frequency penalty
};

/// Words of one slot's set of tokens seen so far (a bit a token).
constexpr std::int64_t seen_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }

/// Draws one token for every sequence with a row of logits.
struct SamplingOperands {
  const SamplingArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* logits = nullptr;  ///< [logit rows, vocab_size]; null without has_logits
  std::uint32_t* seen = nullptr;  ///< [slots, seen_words]; null unless track_seen
  /// [slots, vocab_size]: how often each token is in the output; null unless count_output.
  std::int32_t* output_counts = nullptr;
  std::int32_t* slot_tokens = nullptr;  ///< [slots], updated
  std::int32_t* tokens = nullptr;       ///< [sequences], -1 where no token was drawn
};
void sampling_cpu(const CpuContext& cpu, const SamplingOperands& operands);
/// All pointers are device memory; the tag's num_sequences is the batch's. Same semantics; a token
/// at the border of top-p or min-p may fall on the other side, as sums are exact here: each token's
/// probability counts in units of 2^-44 of the likeliest one's. `probabilities` [logit rows,
/// vocab_size], unless null, gets what the tokens were drawn with. When a logit is NaN or +inf,
/// gpu.failure names the row of the logits and the token, or token -1 when all logits are -inf, and
/// that sequence draws none.
void sampling_cuda(const cuda::Context& gpu, const SamplingOperands& operands,
                   float* probabilities = nullptr);

/// What one slot remembers of its sequence. Null: there is no penalty that needs it.
struct SlotHistory {
  const std::uint32_t* seen = nullptr;          ///< [seen_words], of prompt and output
  const std::int32_t* output_counts = nullptr;  ///< [vocab_size]

  constexpr bool has_seen(std::int64_t token) const {
    return seen != nullptr && ((seen[token / 32] >> (token % 32)) & 1U) != 0;
  }
  constexpr std::int32_t output_count(std::int64_t token) const {
    return output_counts == nullptr ? 0 : output_counts[token];
  }
};

/// The probabilities that a token is drawn with, in the order that Hugging Face's generate()
/// applies its processors: penalties, suppressed tokens (-inf; set in `logits` already, see
/// suppress()), temperature, top-k, top-p, min-p, softmax. temperature 0 gives all to the largest
/// logit (the lowest id among equals). Throws Error when a logit is NaN.
void token_probabilities(std::span<const float> logits, const SamplingRow& row,
                         const SlotHistory& history, std::span<float> probabilities);

/// The same in double precision by the definition of each step, for the tests. `history` is prompt
/// and output, `output` the latter alone.
std::vector<double> token_probabilities_reference(std::span<const float> logits,
                                                  const SamplingRow& row,
                                                  std::span<const std::int32_t> history,
                                                  std::span<const std::int32_t> suppressed = {},
                                                  std::span<const std::int32_t> output = {});

/// Gives suppressed tokens no chance: -inf. NaN and +inf stay, so that they are noticed.
void suppress(std::span<const std::int32_t> suppressed, std::span<float> logits);

/// Whether an ascending list has the token.
constexpr bool is_suppressed(std::span<const std::int32_t> suppressed, std::int32_t token) {
  std::size_t begin = 0;
  std::size_t end = suppressed.size();
  while (begin < end) {
    const std::size_t middle = (begin + end) / 2;
    if (suppressed[middle] == token) return true;
    if (suppressed[middle] < token) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return false;
}

/// A uniform number in [0, 1) that depends on (seed, step) only.
constexpr double uniform_draw(const SamplingRow& row) {
  // splitmix64 over (seed, step)
  std::uint64_t z = (static_cast<std::uint64_t>(row.seed_high) << 32) | row.seed_low;
  z += 0x9e3779b97f4a7c15ULL * (static_cast<std::uint64_t>(row.step) + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

/// A token's logit after the penalties. Of one that was seen: logit / repetition_penalty, or times
/// it below 0. Then of one that is `count` times in the output: logit - frequency_penalty * count -
/// presence_penalty (OpenAI's).
constexpr float penalised_logit(float logit, std::int64_t token, const SamplingRow& row,
                                const SlotHistory& history) {
  if (history.has_seen(token))
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  const std::int32_t count = history.output_count(token);
  if (count == 0) return logit;
  // The product is exact, so that a fused multiply-add, where there is one, rounds no other way.
  const double penalty = static_cast<double>(row.frequency_penalty) * count +
                         static_cast<double>(row.presence_penalty);
  return static_cast<float>(static_cast<double>(logit) - penalty);
}

struct SamplingHandles {
  HandleRef batch;
  HandleRef logits;  ///< empty without has_logits
  HandleRef seen;
  HandleRef output_counts;  ///< empty without count_output
  HandleRef slot_tokens;
  HandleRef tokens;
};
void submit_sampling(DType dtype, const SamplingArgs& args, const SamplingHandles& handles);

}  // namespace sluice
