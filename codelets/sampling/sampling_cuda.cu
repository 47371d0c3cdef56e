#include <climits>

#include "codelets/cuda/block.h"
#include "codelets/cuda/ordered.h"
#include "codelets/sampling/sampling.h"

namespace sluice {
namespace {

/// A token's share of the probability as an integer, so that sums do not depend on their order: the
/// largest token's is 2^44, and 2^18 tokens fit in 64 bits.
using Share = unsigned long long;
constexpr float largest_share = 0x1p44F;

constexpr int digit_bits = 11;
constexpr int num_digits = 1 << digit_bits;

/// Larger values have larger keys.
__device__ std::uint32_t key_of(float value) { return cuda::ordered_bits(value); }
/// The same of a value relative to the largest one, coarsely, and evenly spread over what logits
/// differ by: a key's upper bits alone would send most tokens to a few counters.
__device__ int coarse_of(float value) {
  constexpr float steps = 64;
  return num_digits - 1 - static_cast<int>(fminf(-value * steps, num_digits - 1));
}

/// What the kernel works on, in device memory; see SamplingOperands.
struct Call {
  BatchView batch;
  std::int64_t vocab_size;
  const float* logits;
  std::uint32_t* seen;
  std::int32_t* output_counts;
  std::int32_t* slot_tokens;
  std::int32_t* tokens;
  float* probabilities;  ///< [logit rows, vocab_size], or null
  cuda::DeviceFailure* failure;
};

/// One sequence's logits after the penalties, suppressed tokens at -inf.
struct Logits {
  const float* raw;
  const SamplingRow& row;
  SlotHistory history;
  std::span<const std::int32_t> suppressed;
  int count;

  __device__ float at(int id) const { return penalised(id, raw[id]); }
  __device__ float penalised(int id, float logit) const {
    if (!suppressed.empty() && is_suppressed(suppressed, id)) return -INFINITY;
    return penalised_logit(logit, id, row, history);
  }
};

template <typename T>
__device__ T block_sum(T value) {
  return cuda::block_reduce(value, [](T a, T b) { return a + b; });
}

/// Index of the largest logit, the lowest among equals; `bad` of the first that is NaN or +inf, or
/// INT_MAX. -1: all are -inf.
__device__ int find_best(const Logits& logits, int* bad) {
  Share best = 0;  // key, then the complement of the index
  int first_bad = INT_MAX;
  const auto threads = static_cast<int>(blockDim.x);
  constexpr int at_once = 8;  // loads on their way
  for (int first = static_cast<int>(threadIdx.x); first < logits.count;
       first += at_once * threads) {
    float raw[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int i = first + j * threads;
      raw[j] = i < logits.count ? logits.raw[i] : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int i = first + j * threads;
      if (!(raw[j] < INFINITY)) {
        first_bad = i < first_bad ? i : first_bad;
        continue;
      }
      if (raw[j] == -INFINITY) continue;
      const float logit = logits.penalised(i, raw[j]);
      if (logit == -INFINITY) continue;
      const Share mine =
          static_cast<Share>(key_of(logit)) << 32 | (0xffffffffU - static_cast<unsigned>(i));
      best = mine > best ? mine : best;
    }
  }
  *bad = cuda::block_reduce(first_bad, [](int a, int b) { return a < b ? a : b; });
  best = cuda::block_reduce(best, [](Share a, Share b) { return a > b ? a : b; });
  return best == 0 ? -1 : static_cast<int>(0xffffffffU - static_cast<unsigned>(best));
}

/// Where a list in order of value, the largest first, is cut.
struct Cut {
  std::uint32_t key;  ///< of the last value that stays
  Share above;        ///< of those with larger keys
  Share equal;        ///< of those with this key
};

/// The smallest key of which those above it have less than `limit` (> 0) together. share_of(id,
/// value) is 0 for tokens that do not count. A digit of 11 bits at a time. The whole block.
template <typename ValueOf, typename ShareOf>
__device__ Cut find_cut(int count, Share limit, ValueOf value_of, ShareOf share_of) {
  __shared__ Share shares[num_digits];
  __shared__ int chosen;  // counted from the largest digit on
  __shared__ Share chosen_above;
  const auto threads = static_cast<int>(blockDim.x);
  const auto me = static_cast<int>(threadIdx.x);
  Cut cut{0, 0, 0};
  int coarse = 0;
  for (int round = 0; round < 4; ++round) {
    // The coarse value, and then the key's bits 31..21, 20..10 and 9..0.
    const int shift = round == 1 ? 21 : round == 2 ? 10 : 0;
    const std::uint32_t known = round == 2 ? 0xffe00000U : round == 3 ? 0xfffffc00U : 0U;
    const std::uint32_t mask = round == 3 ? 0x3ffU : 0x7ffU;
    for (int i = me; i < num_digits; i += threads) shares[i] = 0;
    if (me == 0) chosen = -1;
    __syncthreads();
    for (int i = me; i < count; i += threads) {
      const float value = value_of(i);
      const Share share = share_of(i, value);
      if (share == 0) continue;
      const std::uint32_t key = key_of(value);
      if (round > 0 && (coarse_of(value) != coarse || ((key ^ cut.key) & known) != 0)) continue;
      const int digit = round == 0 ? coarse_of(value) : static_cast<int>(key >> shift & mask);
      atomicAdd(&shares[digit], share);
    }
    __syncthreads();
    const int each = (num_digits + threads - 1) / threads;
    const auto share_at = [&](int i) {  // the largest digit first
      return i < num_digits ? shares[num_digits - 1 - i] : 0;
    };
    Share mine = 0;
    for (int i = me * each; i < (me + 1) * each; ++i) mine += share_at(i);
    Share all = 0;
    const Share before = cut.above + cuda::block_exclusive_sum(mine, &all);
    Share above = before;
    int last = -1;
    Share last_above = 0;
    for (int i = me * each; i < (me + 1) * each; ++i) {
      if (share_at(i) == 0) continue;
      if (above < limit) {
        last = i;
        last_above = above;
      }
      above += share_at(i);
    }
    if (last >= 0) atomicMax(&chosen, last);
    __syncthreads();
    if (last >= 0 && last == chosen) chosen_above = last_above;
    __syncthreads();
    const int digit = num_digits - 1 - chosen;
    if (round == 0) {
      coarse = digit;
    } else {
      cut.key |= static_cast<std::uint32_t>(digit) << shift;
    }
    cut.above = chosen_above;
    cut.equal = shares[digit];
    __syncthreads();  // before the next round's
  }
  return cut;
}

/// The first token of which it and those before it have more than `target` together; all have. The
/// whole block, of at least two warps.
template <typename ShareOf>
__device__ int find_token(int count, Share target, ShareOf share_of) {
  __shared__ Share of_warps[cuda::warp_threads];
  __shared__ int found;
  const int num_warps = static_cast<int>(blockDim.x) / cuda::warp_threads;
  const int warp = static_cast<int>(threadIdx.x) / cuda::warp_threads;
  int begin = 0;
  int end = count;
  while (end - begin > static_cast<int>(blockDim.x)) {
    const int each = (end - begin + num_warps - 1) / num_warps;
    const int last = begin + (warp + 1) * each < end ? begin + (warp + 1) * each : end;
    Share sum = 0;
    for (int i = begin + warp * each + static_cast<int>(threadIdx.x) % cuda::warp_threads; i < last;
         i += cuda::warp_threads) {
      sum += share_of(i);
    }
    sum = cuda::warp_reduce(sum, [](Share a, Share b) { return a + b; });
    if (threadIdx.x % cuda::warp_threads == 0) of_warps[warp] = sum;
    __syncthreads();
    int part = 0;
    while (part + 1 < num_warps && of_warps[part] <= target) target -= of_warps[part++];
    begin += part * each;
    end = begin + each < end ? begin + each : end;
    __syncthreads();  // before the next round's
  }
  const int mine = begin + static_cast<int>(threadIdx.x);
  const Share share = mine < end ? share_of(mine) : 0;
  Share all = 0;
  const Share before = cuda::block_exclusive_sum(share, &all);
  if (before <= target && target < before + share) found = mine;
  __syncthreads();
  const int result = found;
  __syncthreads();  // before the next call's
  return result;
}

/// The tokens that may be drawn, and with which share each. See token_probabilities().
struct Choice {
  Logits logits;
  float highest;
  float temperature;
  float min_p;
  std::uint32_t lowest_key;  ///< by top-k and top-p
  int last_of_lowest;        ///< of the tokens with that key, the last that stays

  __device__ Choice(const Logits& of, int best, const SamplingRow& row)
      : logits(of),
        highest(of.at(best)),
        temperature(row.temperature),
        min_p(fminf(row.min_p, 1.0F)),
        lowest_key(0),
        last_of_lowest(INT_MAX) {
    const auto value = [this](int id) { return value_of(id); };
    if (row.top_k > 0 && row.top_k < logits.count) {
      lowest_key = find_cut(logits.count, static_cast<Share>(row.top_k), value, [](int, float v) {
                     return v == -INFINITY ? Share{0} : Share{1};
                   }).key;
    }
    if (row.top_p >= 1.0F) return;
    Share sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < logits.count;
         i += static_cast<int>(blockDim.x)) {
      sum += without_min_p(i, value_of(i));
    }
    const Share total = block_sum(sum);
    // A token stays while those likelier have less than this.
    Share limit =
        static_cast<Share>(ceil(static_cast<double>(row.top_p) * static_cast<double>(total)));
    if (limit < 1) limit = 1;
    const Cut cut = find_cut(logits.count, limit, value,
                             [this](int id, float v) { return without_min_p(id, v); });
    lowest_key = cut.key;
    // Of equals those with the lowest ids stay, each with the same share.
    const auto equal = [&](int id) {
      const float v = value_of(id);
      return key_of(v) == cut.key ? without_min_p(id, v) : Share{0};
    };
    if (limit - cut.above < cut.equal) {
      last_of_lowest = find_token(logits.count, limit - cut.above - 1, equal);
    }
  }

  __device__ float value_of(int id) const { return (logits.at(id) - highest) / temperature; }

  __device__ Share without_min_p(int id, float value) const {
    const std::uint32_t key = key_of(value);
    if (key < lowest_key || (key == lowest_key && id > last_of_lowest)) return 0;
    return static_cast<Share>(expf(value) * largest_share);
  }
  __device__ Share share_of(int id) const {
    const float value = value_of(id);
    return expf(value) < min_p ? 0 : without_min_p(id, value);
  }
};

/// The whole block.
__device__ int draw(const Call& call, const Logits& logits, int best,
                    const BatchSequence& sequence) {
  float* probabilities = call.probabilities == nullptr
                             ? nullptr
                             : call.probabilities + sequence.logit_row * call.vocab_size;
  const auto me = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  if (sequence.sampling.temperature <= 0.0F) {
    for (int i = me; probabilities != nullptr && i < logits.count; i += threads) {
      probabilities[i] = i == best ? 1.0F : 0.0F;
    }
    return best;
  }
  const Choice choice(logits, best, sequence.sampling);
  Share sum = 0;
  for (int i = me; i < logits.count; i += threads) sum += choice.share_of(i);
  const Share total = block_sum(sum);
  for (int i = me; probabilities != nullptr && i < logits.count; i += threads) {
    probabilities[i] =
        static_cast<float>(static_cast<double>(choice.share_of(i)) / static_cast<double>(total));
  }
  const auto target =
      static_cast<Share>(uniform_draw(sequence.sampling) * static_cast<double>(total));
  return find_token(logits.count, target < total ? target : total - 1,
                    [&](int id) { return choice.share_of(id); });
}

/// Brings what a slot remembers up to date with what this batch feeds; only what its sequence's
/// penalties need. The whole block.
__device__ SlotHistory update_history(const Call& call, const BatchSequence& sequence) {
  std::uint32_t* seen = nullptr;
  std::int32_t* counts = nullptr;
  if (sequence.sampling.penalises_seen() && call.seen != nullptr)
    seen = call.seen + sequence.slot * seen_words(call.vocab_size);
  if (sequence.sampling.penalises_output() && call.output_counts != nullptr)
    counts = call.output_counts + sequence.slot * call.vocab_size;
  if (seen == nullptr && counts == nullptr) return {};
  const auto me = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const auto note = [&](int token, int position) {
    if (seen != nullptr) atomicOr(&seen[token / 32], std::uint32_t{1} << (token % 32));
    if (counts != nullptr && position >= sequence.prompt_tokens) atomicAdd(&counts[token], 1);
  };
  if (sequence.fresh != 0) {
    for (int i = me; seen != nullptr && i < seen_words(call.vocab_size); i += threads) seen[i] = 0;
    for (int i = me; counts != nullptr && i < call.vocab_size; i += threads) counts[i] = 0;
    __syncthreads();
    const std::span<const std::int32_t> history = call.batch.history(sequence);
    for (int i = me; i < sequence.num_history; i += threads)
      note(history[static_cast<std::size_t>(i)], i);
  }
  for (int r = me; r < sequence.num_rows; r += threads) {
    const BatchRow& row = call.batch.rows()[static_cast<std::size_t>(sequence.first_row + r)];
    note(row.token >= 0 ? row.token : call.slot_tokens[-(row.token + 1)], row.position);
  }
  __syncthreads();
  return {seen, counts};
}

constexpr unsigned most_threads = 1024;

/// A block a sequence.
__global__ void __launch_bounds__(most_threads) sample_tokens(Call call) {
  const BatchSequence sequence = call.batch.sequences()[blockIdx.x];
  const SlotHistory history = update_history(call, sequence);
  int token = -1;
  if (sequence.logit_row >= 0) {
    const Logits logits{call.logits + sequence.logit_row * call.vocab_size, sequence.sampling,
                        history, call.batch.suppressed(sequence),
                        static_cast<int>(call.vocab_size)};
    int bad = 0;
    const int best = find_best(logits, &bad);
    if (bad != INT_MAX || best < 0) {
      if (threadIdx.x == 0) {
        cuda::record(call.failure, cuda::DeviceFailure::logit_nan, sequence.logit_row,
                     bad != INT_MAX ? bad : -1);
      }
    } else {
      token = draw(call, logits, best, sequence);
    }
  }
  if (threadIdx.x != 0) return;
  call.tokens[blockIdx.x] = token;
  if (token >= 0) call.slot_tokens[sequence.slot] = token;
}

/// Two warps at least, see find_token().
unsigned threads_for(std::int64_t vocab_size) {
  return vocab_size >= 32'768 ? most_threads : vocab_size >= 2'048 ? 256 : 64;
}

}  // namespace

void sampling_cuda(const cuda::Context& gpu, const SamplingOperands& operands,
                   float* probabilities) {
  const SamplingArgs& args = *operands.args;
  const Call call{operands.batch,  args.vocab_size,        operands.logits,
                  operands.seen,   operands.output_counts, operands.slot_tokens,
                  operands.tokens, probabilities,          gpu.failure};
  cuda::launch("sample_tokens", sample_tokens,
               {.blocks = dim3(static_cast<unsigned>(args.tag.num_sequences)),
                .threads = dim3(threads_for(args.vocab_size))},
               gpu.stream, call);
}

}  // namespace sluice
