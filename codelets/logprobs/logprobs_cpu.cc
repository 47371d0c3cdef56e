#include <algorithm>
#include <cmath>
#include <limits>

#include "codelets/kernels/simd.h"
#include "codelets/logprobs/logprobs.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Throws Error when the logits make no distribution.
float find_highest(std::span<const float> logits) {
  const std::int64_t found =
      simd::find_largest(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (found >= 0) return logits[static_cast<std::size_t>(found)];
  float highest = -infinity;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < infinity))
      throw Error("the model computed {} for token {}; its weights or dtype are bad", logits[i], i);
    highest = std::max(highest, logits[i]);
  }
  if (highest == -infinity) throw Error("the model gives no token a chance: all logits are -inf");
  return highest;
}

/// log(sum of e^logit).
double log_of_sum(std::span<const float> logits) {
  const float highest = find_highest(logits);
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - highest));
  return static_cast<double>(highest) + std::log(sum);
}

/// The tokens with the largest logits, in order, each with its logit.
void find_likeliest(std::span<const float> logits, std::span<TokenLogprob> likeliest) {
  if (likeliest.empty()) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (kept == likeliest.size() && logit <= likeliest[kept - 1].logprob) continue;
    std::size_t place = kept < likeliest.size() ? kept++ : kept - 1;
    for (; place > 0 && logit > likeliest[place - 1].logprob; --place)
      likeliest[place] = likeliest[place - 1];
    likeliest[place] = {static_cast<std::int32_t>(i), logit};
  }
  std::fill(likeliest.begin() + static_cast<std::ptrdiff_t>(kept), likeliest.end(),
            TokenLogprob{-1, -infinity});
}

}  // namespace

void logprobs_cpu(const CpuContext& cpu, const LogprobsOperands& operands) {
  const LogprobsArgs& args = *operands.args;
  const auto vocab = static_cast<std::size_t>(args.vocab_size);
  cpu.pool.run(args.num_rows, [&](std::int64_t r) {
    const LogprobsRow row = logprobs_row(operands, args, r);
    if (row.logit_row < 0 || row.token < 0) return;
    if (static_cast<std::size_t>(row.token) >= vocab)
      throw Error("token {} is not one of the vocabulary's {}", row.token, vocab);
    const std::span logits(operands.logits + row.logit_row * args.vocab_size, vocab);
    const double normaliser = log_of_sum(logits);
    const auto logprob = [&](float logit) {
      return static_cast<float>(static_cast<double>(logit) - normaliser);
    };
    TokenLogprob* out = operands.out + r * (1 + args.most_likeliest);
    out[0] = {row.token, logprob(logits[static_cast<std::size_t>(row.token)])};
    const std::span likeliest(out + 1, static_cast<std::size_t>(row.num_likeliest));
    find_likeliest(logits, likeliest);
    for (TokenLogprob& entry : likeliest) entry.logprob = logprob(entry.logprob);
  });
}

}  // namespace sluice
