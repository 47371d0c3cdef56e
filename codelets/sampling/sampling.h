#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "codelets/runtime/batch.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
class DataHandle;
namespace cuda {
struct Context;
}

/// Argument of the sampling codelet.
struct SamplingArgs {
  TaskTag tag;
  std::int64_t vocab_size = 0;
  bool has_logits = true;   ///< false: only prompts' parts, which draw no token yet
  bool track_seen = false;  ///< some sequence has a repetition penalty
};

/// Words of one slot's set of tokens seen so far (a bit a token).
constexpr std::int64_t seen_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }

/// Draws one token for every sequence with a row of logits.
struct SamplingOperands {
  const SamplingArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* logits = nullptr;        ///< [logit rows, vocab_size]; null without has_logits
  std::uint32_t* seen = nullptr;        ///< [slots, seen_words]; null unless track_seen
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

/// The probabilities that a token is drawn with, in the order that Hugging Face's generate()
/// applies its processors: repetition penalty, suppressed tokens (-inf; set in `logits` already,
/// see suppress()), temperature, top-k, top-p, min-p, softmax. `seen` as in SamplingOperands for
/// one slot, or null. temperature 0 gives all to the largest logit (the lowest id among equals).
/// Throws Error when a logit is NaN.
void token_probabilities(std::span<const float> logits, const SamplingRow& row,
                         const std::uint32_t* seen, std::span<float> probabilities);

/// The same in double precision by the definition of each step, for the tests.
std::vector<double> token_probabilities_reference(std::span<const float> logits,
                                                  const SamplingRow& row,
                                                  std::span<const std::int32_t> history,
                                                  std::span<const std::int32_t> suppressed = {});

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

/// A logit of a token that was seen before, after the repetition penalty.
constexpr float penalised_logit(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

struct SamplingHandles {
  const DataHandle& batch;
  const DataHandle& logits;  ///< empty without has_logits
  const DataHandle& seen;
  const DataHandle& slot_tokens;
  const DataHandle& tokens;
};
void submit_sampling(DType dtype, const SamplingArgs& args, const SamplingHandles& handles);

}  // namespace sluice
