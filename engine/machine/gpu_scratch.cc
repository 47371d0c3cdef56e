#include "engine/machine/gpu_scratch.h"

#include <algorithm>

#include "codelets/attention/attention_split.h"
#include "codelets/cuda/linear_limits.h"
#include "codelets/experts/experts_gpu_memory.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/gpu.h"
#include "codelets/runtime/recurring.h"
#include "graphs/model_weights.h"

namespace sluice {
namespace {

/// Of each array in a workspace.
constexpr std::int64_t alignment = 256;
constexpr std::int64_t float_bytes = 4;

std::int64_t attention_scratch(const DecoderShape& shape, const LargestIteration& largest) {
  const std::int64_t context_tokens =
      recurring_context_tokens(largest.context_tokens, largest.sequences);
  const std::int64_t slots =
      most_attention_slots_up_to(shape, largest.rows, largest.sequences, context_tokens);
  const std::int64_t outputs =
      slots * shape.num_heads * (shape.padded_head_dim() + 2) * float_bytes;
  const std::int64_t lists = 2 * slots + largest.rows +
                             largest.rows * shape.group_size() / tile_queries + largest.sequences;
  const std::int64_t gathered_pages = largest.rows / page_tokens + 2 * largest.sequences;
  return outputs + lists * most_attention_entry_bytes +
         gathered_pages * static_cast<std::int64_t>(shape.page_bytes()) +
         context_tokens * float_bytes + 16 * alignment;
}

/// Of the router, and of a task of experts, however many of them it has. `linear` is a linear
/// map's.
template <typename Linear>
std::int64_t mixture_scratch(const ModelConfig& config, const DecoderShape& shape,
                             std::int64_t rows, const Linear& linear) {
  if (config.num_experts == 0) return 0;
  const MixtureShape mixture = mixture_shape(config);
  const ExpertsGpuMemory experts(shape, mixture, mixture.num_experts, rows);
  const std::int64_t logits = rows * config.num_experts * float_bytes + 2 * alignment;
  return std::max(logits + linear(rows, config.hidden_size, config.num_experts, 1),
                  static_cast<std::int64_t>(experts.layout.bytes()));
}

}  // namespace

GpuScratch gpu_scratch(const ModelConfig& config, DType dtype, const LargestIteration& largest,
                       int num_multiprocessors, std::uint64_t memory_bytes) {
  const DecoderShape shape = decoder_shape(config, dtype);
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(dtype));
  const auto linear = [&](std::int64_t rows, std::int64_t in, std::int64_t out,
                          std::int64_t matrices) {
    return cuda::most_linear_scratch_bytes(rows, in, out, matrices, element_bytes,
                                           num_multiprocessors);
  };
  const std::int64_t rows = largest.rows;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t input = rows * (hidden + 64) * element_bytes;
  const std::int64_t qkv =
      input + rows * shape.qkv_size() * float_bytes + linear(rows, hidden, shape.qkv_size(), 1);
  const std::int64_t ffn_size = config.widest_ffn();
  const std::int64_t ffn =
      std::max(input + linear(rows, hidden, ffn_size, config.gated_ffn ? 2 : 1),
               linear(rows, ffn_size, hidden, 1));
  std::int64_t shared = 0;
  if (config.shared_ffn_size > 0) {  // its input is the router's, and its h stands there, too
    shared = rows * (config.shared_ffn_size + 64) * element_bytes +
             std::max(linear(rows, hidden, config.shared_ffn_size, config.gated_ffn ? 2 : 1),
                      linear(rows, config.shared_ffn_size, hidden, 1));
  }
  std::int64_t ends =
      linear(largest.logit_rows, std::max(hidden, config.embed_size), config.vocab_size, 1);
  if (config.embed_size != hidden) {
    ends += linear(largest.logit_rows, hidden, config.embed_size, 1);
    ends = std::max(ends, input + linear(rows, config.embed_size, hidden, 1));
  }
  ends += 2 * largest.logit_rows * (hidden + config.embed_size) * element_bytes;
  const std::int64_t out = linear(rows, shape.q_size(), hidden, 1);
  const std::int64_t workspace =
      std::max({qkv, ffn, shared, ends, out, attention_scratch(shape, largest),
                mixture_scratch(config, shape, rows, linear)});
  const std::int64_t stage = rows * (2 * shape.q_size() + ffn_size + 128) * element_bytes;
  // A batch that attends in parts maps q, k and v while it holds them (qkv_split_cuda).
  return {.workspace_bytes = static_cast<std::uint64_t>(workspace),
          .stage_bytes = static_cast<std::uint64_t>(std::max(stage, qkv) + 4 * alignment),
          .blas_bytes = gpu_blas_bytes(memory_bytes)};
}

}  // namespace sluice
