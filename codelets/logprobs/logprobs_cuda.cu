#include "codelets/cuda/block.h"
#include "codelets/cuda/ordered.h"
#include "codelets/logprobs/logprobs.h"

namespace sluice {
namespace {

/// A logit's order, then the complement of its token: each token has another one, above 0.
using Key = unsigned long long;
constexpr Key above_all = ~Key{0};

__device__ Key key_of(float logit, int token) {
  return Key{cuda::ordered_bits(logit)} << 32 | (0xffffffffU - static_cast<unsigned>(token));
}
__device__ int token_of(Key key) {
  return static_cast<int>(0xffffffffU - static_cast<unsigned>(key));
}
/// The whole block.
__device__ Key largest_of_block(Key key) {
  return cuda::block_reduce(key, [](Key a, Key b) { return a > b ? a : b; });
}

/// What the kernel works on; pointers are to device memory.
struct Call {
  LogprobsOperands operands;  ///< but for `args`, which is the host's
  LogprobsArgs args;
  cuda::DeviceFailure* failure;
};

/// Of this thread's tokens the largest key below `bound`; 0: there is none.
__device__ Key largest_below(const float* logits, int count, Key bound) {
  Key largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const Key key = key_of(logits[i], i);
    if (key < bound && key > largest) largest = key;
  }
  return largest;
}

/// Sum of e^(logit - highest), in the same order each time. The whole block.
__device__ double sum_of_exponentials(const float* logits, int count, float highest) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    sum += static_cast<double>(expf(logits[i] - highest));
  return cuda::block_reduce(sum, [](double a, double b) { return a + b; });
}

/// The first token whose logit is NaN or +inf; -1: there is none, all are -inf.
__device__ int find_bad(const float* logits, int count) {
  for (int i = 0; i < count; ++i) {
    if (!(logits[i] < INFINITY)) return i;
  }
  return -1;
}

constexpr unsigned most_threads = 1024;

/// A block a row of `out`.
__global__ void __launch_bounds__(most_threads) find_logprobs(Call call) {
  const LogprobsRow row = logprobs_row(call.operands, call.args, blockIdx.x);
  if (row.logit_row < 0 || row.token < 0) return;
  const auto count = static_cast<int>(call.args.vocab_size);
  if (row.token >= count) {
    if (threadIdx.x == 0) {
      cuda::record(call.failure, cuda::DeviceFailure::token_outside_vocabulary, row.logit_row,
                   row.token);
    }
    return;
  }
  const float* logits = call.operands.logits + row.logit_row * call.args.vocab_size;
  Key mine = largest_below(logits, count, above_all);
  Key next = largest_of_block(mine);
  const float highest = logits[token_of(next)];
  const double sum = sum_of_exponentials(logits, count, highest);
  if (!(sum >= 1)) {  // NaN
    if (threadIdx.x == 0) {
      cuda::record(call.failure, cuda::DeviceFailure::logit_nan, row.logit_row,
                   find_bad(logits, count));
    }
    return;
  }
  const double normaliser = static_cast<double>(highest) + log(sum);
  const auto logprob_of = [&](int token) {
    return static_cast<float>(static_cast<double>(logits[token]) - normaliser);
  };
  TokenLogprob* out = call.operands.out + blockIdx.x * (1 + call.args.most_likeliest);
  if (threadIdx.x == 0) out[0] = {row.token, logprob_of(row.token)};
  for (int i = 1; i <= row.num_likeliest; ++i) {
    if (threadIdx.x == 0) {
      const int token = token_of(next);
      out[i] = next == 0 ? TokenLogprob{-1, -INFINITY} : TokenLogprob{token, logprob_of(token)};
    }
    if (i == row.num_likeliest || next == 0) continue;
    if (mine == next) mine = largest_below(logits, count, next);
    next = largest_of_block(mine);
  }
}

}  // namespace

void logprobs_cuda(const cuda::Context& gpu, const LogprobsOperands& operands) {
  const LogprobsArgs& args = *operands.args;
  const unsigned threads = args.vocab_size >= 32'768 ? most_threads : 256;
  const Call call{operands, args, gpu.failure};
  cuda::launch("find_logprobs", find_logprobs,
               {.blocks = dim3(static_cast<unsigned>(args.num_rows)), .threads = dim3(threads)},
               gpu.stream, call);
}

}  // namespace sluice
