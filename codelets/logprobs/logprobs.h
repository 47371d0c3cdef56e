#pragma once

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

/// Which tokens the logprobs are of: those that sampling drew, or given ones behind the batch's
/// scored rows.
enum class LogprobsOf : std::uint8_t { drawn_tokens, given_tokens };

/// Argument of the codelet that reduces logits to logprobs.
struct LogprobsArgs {
  TaskTag tag;
  std::int64_t vocab_size = 0;
  std::int64_t most_likeliest = 0;  ///< of all rows; a row names as many as its sequence asks for
  LogprobsOf of = LogprobsOf::drawn_tokens;
  std::int64_t first_row = 0;  ///< of given tokens: the first scored row of this task
  std::int64_t num_rows = 0;   ///< of given tokens: its scored rows; else the batch's sequences
};

/// A token and log(softmax(logits))[token], natural, of the raw logits: before penalties,
/// suppression and temperature. -inf for a token without a chance.
struct TokenLogprob {
  std::int32_t token = -1;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

/// A token's logprob, and those of the likeliest tokens in its place, as many as were asked for, or
/// all that there are; the token may be among them.
struct TokenLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> likeliest;
};

/// out[r] = the wanted token's logprob, and those of the likeliest tokens, the likeliest first, of
/// equals the lowest id first; {-1, -inf} behind the vocabulary's last. What nobody asks for is not
/// written.
struct LogprobsOperands {
  const LogprobsArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* logits = nullptr;         ///< [logit rows or num_rows, vocab_size]
  const std::int32_t* tokens = nullptr;  ///< [sequences]: drawn; null for given tokens
  TokenLogprob* out = nullptr;           ///< [num_rows, 1 + most_likeliest]
};
/// Throws Error when a logit is NaN or +inf, when all are -inf, and when a given token is none.
void logprobs_cpu(const CpuContext& cpu, const LogprobsOperands& operands);
/// The same with all pointers in device memory; gpu.failure names what was wrong.
void logprobs_cuda(const cuda::Context& gpu, const LogprobsOperands& operands);

/// What one row of `out` is made of.
struct LogprobsRow {
  std::int64_t logit_row = -1;  ///< -1: nobody asks
  std::int32_t token = -1;      ///< -1: none was drawn, as sampling failed
  std::int32_t num_likeliest = 0;
};
constexpr LogprobsRow logprobs_row(const LogprobsOperands& operands, const LogprobsArgs& args,
                                   std::int64_t row) {
  const BatchView& batch = operands.batch;
  if (args.of == LogprobsOf::drawn_tokens) {
    const BatchSequence& sequence = batch.sequences()[static_cast<std::size_t>(row)];
    if (sequence.logprobs < 0) return {};
    return {sequence.logit_row, operands.tokens[row], sequence.logprobs};
  }
  const auto scored = static_cast<std::size_t>(args.first_row + row);
  const BatchRow& of = batch.rows()[static_cast<std::size_t>(batch.scored_rows()[scored])];
  return {row, batch.scored_tokens()[scored],
          batch.sequences()[static_cast<std::size_t>(of.sequence)].prompt_logprobs};
}

/// One row in double precision by definition, for the tests: the token's, then the likeliest ones'.
struct ReferenceLogprob {
  std::int32_t token;
  double logprob;
};
std::vector<ReferenceLogprob> logprobs_reference(std::span<const float> logits, std::int32_t token,
                                                 std::int64_t num_likeliest);

struct LogprobsHandles {
  HandleRef batch;
  HandleRef logits;
  HandleRef tokens;  ///< empty for given tokens
  HandleRef out;
};
void submit_logprobs(DType dtype, const LogprobsArgs& args, const LogprobsHandles& handles);

}  // namespace sluice
